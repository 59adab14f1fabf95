"""The GPUs that a sampler's child asks: one row each, read by a few threads; a hung one blocks no other."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from queue import SimpleQueue
from threading import Event, Lock, Thread
from time import monotonic
from typing import Any

from gpudiag.probe.attaching import HANDLE_CALL
from gpudiag.probe.nvml.ask import DeviceSheet
from gpudiag.probe.nvml.details import read_peer
from gpudiag.probe.nvml.device import read_fast, read_identity, read_state
from gpudiag.sampler.tiers import WatchedAsk, describe_processes

FAST, SLOW, PEERS = "fast", "slow", "peers"

# nvmlEventTypeXidCriticalError (nvml.h): the only events that concern health.
_XID_EVENTS = 8


class Row:
    """One GPU: its handle, the call in progress, and the answers not collected yet.

    `read` runs in any thread, one at a time; the ticking thread uses the rest.
    """

    def __init__(self, pynvml: Any, index: int, event_set: Any, root: str) -> None:
        """Keep the GPU's NVML index; its handle is looked up at the first `read`."""
        self.index = index
        self.asking_since: float | None = None
        self.address: int | None = None  # of its handle, as events name it
        self.lost = False
        self._pynvml = pynvml
        self._event_set = event_set
        self._root = root
        self._ask: WatchedAsk | None = None
        self._identity: tuple[dict[str, Any], dict[str, tuple[str, str]]] | None = None
        self._unfinished: DeviceSheet | None = None  # of a GPU that was never read completely
        self._answers: dict[str, Any] = {}
        self._lock = Lock()

    @property
    def call(self) -> str:
        """The call in progress, or the last one."""
        return self._ask.asking if self._ask is not None else HANDLE_CALL

    @property
    def gone(self) -> int | None:
        """The NVML code that says that the driver itself has gone; else None."""
        return None if self._ask is None else self._ask.gone

    @property
    def handle(self) -> Any:
        """The GPU's handle, while it answers; else None."""
        return None if self._ask is None or self.lost else self._ask.handle

    def read(self, tier: str, rows: Sequence[Row]) -> None:
        """Read that tier's readings; `pop_answer` returns them."""
        self.asking_since = monotonic()
        try:
            if tier == PEERS:
                self._read_peers(rows)
            elif tier == SLOW or self._ask is None:
                self._read_slow()
            elif not self.lost:
                self._read_fast(self._ask)
        finally:
            self.asking_since = None

    def late(self, now: float) -> list[Any] | None:
        """The call in progress, its seconds, and what is known of a GPU never read completely; or None."""
        since, unfinished = self.asking_since, self._unfinished
        if since is None:
            return None
        return [self.call, now - since, None if unfinished is None else unfinished.document()]

    def pop_answer(self) -> dict[str, Any]:
        """The answers since the last call, by tier."""
        with self._lock:
            answers, self._answers = self._answers, {}
        return answers

    def _give(self, tier: str, answer: Any) -> None:
        with self._lock:
            self._answers[tier] = answer

    def _read_fast(self, ask: WatchedAsk) -> None:
        sheet = DeviceSheet()
        read_fast(ask, sheet)
        self.lost = sheet.lost is not None
        self._give(FAST, sheet.document())

    def _read_slow(self) -> None:
        """Read everything; a GPU that was lost is looked up again, as it may be back."""
        sheet = DeviceSheet()
        if self._ask is None or self.lost:
            self._ask = self._identity = None
            sheet.read("handle", self._pynvml.nvmlDeviceGetHandleByIndex, self.index)
            handle = sheet.values.pop("handle", None)
            if handle is None:
                self.lost = sheet.lost is not None
                self._give(SLOW, {"document": sheet.document(), "processes": {}})
                return
            self._ask = WatchedAsk(self._pynvml, handle)
            self._unfinished = sheet
        ask, new = self._ask, self._unfinished is sheet
        ask.noted.forget()
        ask.fields.clear()  # a field that is refused now must not keep its last value
        self._fill_identity(ask, sheet)
        read_state(ask, sheet)
        if ask.noted.lost is not None and sheet.lost is None:  # noticed in a part of a reading
            sheet.lost = ask.noted.lost
            sheet.mark("handle", *sheet.lost)
        self.lost = sheet.lost is not None
        processes = describe_processes(ask, sheet, self._root)
        self._unfinished = None
        document = {**sheet.document(), "failed_calls": dict(ask.noted.failed)}
        self._give(SLOW, {"document": document, "processes": processes})
        if new and not self.lost:
            self._watch_events(ask)

    def _fill_identity(self, ask: WatchedAsk, sheet: DeviceSheet) -> None:
        if self._identity is None:
            read_identity(ask, sheet)  # into the sheet itself: it names a GPU that hangs half way
            if sheet.lost is None:
                self._identity = (dict(sheet.values), dict(sheet.missing))
        else:
            sheet.values.update(self._identity[0])
            sheet.missing.update(self._identity[1])

    def _watch_events(self, ask: WatchedAsk) -> None:
        """Register this GPU's Xids with the event set, where GPU and driver have such events."""
        self.address = ctypes.cast(ask.handle, ctypes.c_void_p).value
        if self._event_set is not None:
            DeviceSheet().read("events", ask, "nvmlDeviceRegisterEvents", _XID_EVENTS, self._event_set)

    def _read_peers(self, rows: Sequence[Row]) -> None:
        known = [
            (str(row._identity[0]["bus_id"]), row.handle)
            for row in rows
            if row is not self and row.handle is not None and row._identity and "bus_id" in row._identity[0]
        ]
        if self._ask is not None and not self.lost and known:
            self._give(PEERS, [read_peer(self._ask, *other) for other in known])


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
