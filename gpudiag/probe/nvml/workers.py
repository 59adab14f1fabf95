"""Threads that ask GPUs in batches: a call that never returns costs one thread, and holds up no other GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from threading import Condition, Event, Lock, Thread

_QUICK_SECONDS = 0.02  # a reading that takes longer must not hold up the others


class Batch:
    """Readings to be taken once; threads take them one by one."""

    def __init__(self, readings: Iterable[Callable[[], None]]) -> None:
        """Plan to call each of `readings`."""
        planned = list(readings)
        self.done = Event()
        self.left = len(planned)
        self._waiting: Iterator[Callable[[], None]] = iter(planned)
        self._lock = Lock()
        if not planned:
            self.done.set()

    def work(self) -> None:
        """Take readings until none is left."""
        while True:
            with self._lock:
                read = next(self._waiting, None)
            if read is None:
                return
            read()
            with self._lock:
                self.left -= 1
                if self.left == 0:
                    self.done.set()


class Workers:
    """Threads that take batches: one does it all while calls return at once; else others help.

    On a driver that answers at once one thread takes 60 % of the time of eight (4.7 against 8 ms for eight
    simulated H100s: the interpreter lock). A thread whose call never returns is replaced.
    """

    def __init__(self, most: int) -> None:
        """Start no more than `most` threads: one for each GPU, for each may hang, and one to spare."""
        self._most = most
        self._started = self._idle = 0
        self._batches: list[Batch] = []
        self._changed = Condition()

    def start(self, readings: Iterable[Callable[[], None]]) -> Batch:
        """The batch of these readings, once it is done, or one takes long and all threads are at others."""
        batch = Batch(readings)
        if batch.done.is_set() or not self._set_to_work(batch):
            return batch
        left = -1
        while not batch.done.wait(_QUICK_SECONDS) and left != batch.left:
            left = batch.left
        while not batch.done.is_set() and self._set_to_work(batch):
            pass
        return batch

    def _set_to_work(self, batch: Batch) -> bool:
        """Have one more thread work on the batch; False where none is free and no more may be started."""
        with self._changed:
            if self._idle:
                self._idle -= 1
            elif self._started < self._most:
                self._started += 1
                Thread(target=self._live, daemon=True).start()
            else:
                return False
            self._batches.append(batch)
            self._changed.notify()
        return True

    def _live(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._batches)
                batch = self._batches.pop()
            batch.work()
            with self._changed:
                self._idle += 1
