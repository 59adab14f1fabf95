"""Threads that read GPUs in batches: a call that never returns costs one thread, and holds up no other GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from queue import SimpleQueue
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpudiag.sampler.child import Row


class Batch:
    """Rows to be read once; threads take them one by one."""

    def __init__(self, tier: str, rows: Sequence[Row], everyone: Sequence[Row]) -> None:
        """Plan to read `rows`; `everyone` are all rows, for calls about two GPUs."""
        self.done = Event()
        self._tier = tier
        self._everyone = everyone
        self._waiting: Iterator[Row] = iter(rows)
        self._left = len(rows)
        self._lock = Lock()
        if not rows:
            self.done.set()

    def work(self) -> None:
        """Read rows until none is left."""
        while True:
            with self._lock:
                row = next(self._waiting, None)
            if row is None:
                return
            row.read(self._tier, self._everyone)
            with self._lock:
                self._left -= 1
                if self._left == 0:
                    self.done.set()


class Workers:
    """Threads that read batches: one does it all while calls return at once; else others help.

    On a driver that answers at once one thread is the quickest, as threads contend for the interpreter
    lock. A thread whose call never returns is lost; another takes its place.
    """

    def __init__(self, most: int) -> None:
        """Start no more than `most` threads: one for each GPU and one to spare."""
        self._most = most
        self._queues: list[SimpleQueue[Batch]] = []
        self._idle: list[SimpleQueue[Batch]] = []
        self._lock = Lock()

    def run(self, batch: Batch, quick_seconds: float, patience_seconds: float) -> None:
        """Read the batch; return when it is done, or after `patience_seconds` with several threads."""
        self._set_to_work(batch)
        if batch.done.wait(quick_seconds):
            return
        while self._set_to_work(batch):
            pass
        batch.done.wait(patience_seconds)

    def _set_to_work(self, batch: Batch) -> bool:
        """Have one more thread read the batch; False where none is free and no more may be started."""
        with self._lock:
            if self._idle:
                queue = self._idle.pop()
            elif len(self._queues) < self._most:
                queue = SimpleQueue()
                self._queues.append(queue)
                Thread(target=self._live, args=(queue,), daemon=True).start()
            else:
                return False
        queue.put(batch)
        return True

    def _live(self, queue: SimpleQueue[Batch]) -> None:
        while True:
            queue.get().work()
            with self._lock:
                self._idle.append(queue)
