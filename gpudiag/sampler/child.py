"""`python -m gpudiag.sampler.child PARENT_PID`: ask NVML in tiers and write its answers, line by line.

Each line on standard output is a JSON object:

    {"kind": "starting", "call": C, "seconds": S}     nvmlInit (or the count) has not returned yet
    {"kind": "library", "document": {...}, "count": N}
    {"kind": "failed", "document": {...}}             what nvmlInit raised; it is tried again
    {"kind": "tick", "sequence", "at", "seconds", "fast": {INDEX: sheet}, "slow": {INDEX: {...}}, "prompt",
     "peers": {INDEX: [...]}, "late": {INDEX: [CALL, SECONDS, SHEET]}, "xids": [[INDEX, CODE, AT, UUID], ...],
     "interval", "waited", "longest": [CALL, SECONDS]}
                  prompt: the fast sheets have what must be judged
                  waited: seconds for which its threads wanted a processor in vain
    {"kind": "paused"}
    {"kind": "gone", "reason": TEXT}                  the last line: a fresh process should take over

Lines on standard input change the pace: {"interval": 5.0}, {"paused": true}; {"now": true} has a tick begin
at once, without one. We exit when it closes. The thread that ticks never calls NVML, so that it can always
name the call that has not returned.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from threading import Lock, Thread
from time import monotonic, process_time, sleep, time
from typing import Any

from gpudiag.linux.allocator import keep_little_memory
from gpudiag.linux.child import die_with_parent
from gpudiag.probe.given_time import waited_seconds
from gpudiag.probe.nvml.activity import release_samples
from gpudiag.probe.nvml.ask import DeviceSheet
from gpudiag.probe.nvml.careful import CALLING, CarefulLibrary, Spared
from gpudiag.probe.nvml.device import FIXED_NAMES, read_fast, read_identity, read_prompt, read_state
from gpudiag.probe.nvml.library import describe_failure, open_library
from gpudiag.probe.nvml.row import Row
from gpudiag.probe.nvml.workers import Workers
from gpudiag.probe.sleeping import read_sleeping
from gpudiag.probe.start import host_root
from gpudiag.sampler.tiers import FAST_SECONDS, FIXED_SECONDS, Pace, ProcessFacts, WatchedAsk

# --- the GPUs that it asks

FAST, PROMPT, SLOW, PEERS = "fast", "prompt", "slow", "peers"

# nvmlEventTypeXidCriticalError (nvml.h): the only events that concern health.
_XID_EVENTS = 8


class WatchedRow(Row):
    """A GPU that is asked again and again, in tiers; its answers wait until they are collected."""

    asked_by = WatchedAsk
    _ask: WatchedAsk | None

    def __init__(self, pynvml: Any, index: int, event_set: Any, root: str) -> None:
        """Keep the GPU's NVML index; its handle is looked up at the first `read`."""
        super().__init__(pynvml, index)
        self.asking_since: float | None = None
        self.address: int | None = None  # of its handle, as events name it
        self.is_another = False  # the index leads to another GPU than the one that was identified
        self._event_set = event_set
        self._identity: tuple[dict[str, Any], dict[str, tuple[str, str]]] | None = None
        self._fixed: tuple[dict[str, Any], dict[str, tuple[str, str]]] | None = None
        self._fixed_at = 0.0
        self._modes: list[Any] = []  # of the GPU, on which depends what it supports
        self._processes = ProcessFacts(root)
        self._is_unfinished = False  # it has a handle, and was never read completely since
        self._answers: dict[str, Any] = {}
        self._lock = Lock()

    @property
    def is_new(self) -> bool:
        """Whether the GPU was never asked, so that the driver need not have woken it."""
        return self._ask is None and not self.lost

    @property
    def gone(self) -> int | None:
        """The NVML code that means that the driver itself has gone; else None."""
        return None if self._ask is None else self._ask.gone

    @property
    def uuid(self) -> str | None:
        """The UUID of the GPU whose readings these are; None before it was read."""
        return None if self._identity is None else self._identity[0].get("uuid")

    def pop_longest(self) -> tuple[str, float]:
        """The longest call since this was asked last, and its seconds."""
        ask = self._ask
        if ask is None:
            return "", 0.0
        longest, ask.longest = ask.longest, ("", 0.0)
        return longest

    def read(self, tier: str, rows: Sequence[WatchedRow]) -> None:
        """Read that tier's readings; `pop_answer` returns them."""
        self.asking_since = monotonic()
        try:
            if tier == PEERS:
                if peers := self.read_peers(rows):
                    self._give(PEERS, peers)
            elif tier == SLOW or self._ask is None:
                self._read_slow()
            elif not self.lost:
                self._read_fast(self._ask, prompt=tier == PROMPT)
        finally:
            self.asking_since = None

    def late(self, now: float) -> list[Any] | None:
        """The call in progress, its seconds, and what is known of a GPU never read completely; or None."""
        since = self.asking_since
        if since is None:
            return None
        return [self.call, now - since, self.sheet.document() if self._is_unfinished else None]

    def pop_answer(self) -> dict[str, Any]:
        """The answers since the last call, by tier."""
        with self._lock:
            answers, self._answers = self._answers, {}
        return answers

    def _give(self, tier: str, answer: Any) -> None:
        with self._lock:
            self._answers[tier] = answer

    def _read_fast(self, ask: WatchedAsk, *, prompt: bool) -> None:
        sheet = DeviceSheet()
        if prompt:
            read_prompt(ask, sheet)
        else:
            read_fast(ask, sheet)
        self.lost = sheet.lost is not None
        self._compare_identity(ask)
        self._give(FAST, sheet.document())
        if prompt:
            self._give(PROMPT, True)

    def _read_slow(self) -> None:
        """Read everything; a GPU that was lost is looked up again, as it may be back."""
        if self._ask is not None and self.lost:
            release_samples(self._ask)
        new = self._ask is None or self.lost
        sheet = self.sheet = DeviceSheet()
        if new:
            self._identity = self._fixed = None
            self._is_unfinished = self.attach() is not None
        ask = self._ask
        if ask is None:
            self._give(SLOW, {"document": self.document(), "processes": {}})
            return
        ask.noted.forget()
        ask.fields.clear()  # a field that is refused now must not keep its last value
        self._fill_identity(ask, sheet)
        self._read_state(ask, sheet)
        self._compare_identity(ask)
        processes = self._processes.describe(ask, sheet)
        self._is_unfinished = False
        self._give(SLOW, {"document": self.document(), "processes": processes})
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

    def _read_state(self, ask: WatchedAsk, sheet: DeviceSheet) -> None:
        """Read what may change; the fixed readings once a minute."""
        now = monotonic()
        if self._fixed is None or now - self._fixed_at > FIXED_SECONDS:
            read_state(ask, sheet)
            self._fixed_at = now
            self._fixed = (_only(sheet.values), _only(sheet.missing)) if sheet.lost is None else None
        else:
            for known, kept in zip((sheet.values, sheet.missing), self._fixed, strict=True):
                known.update(kept)
            read_state(ask, sheet, fixed=False)
            if sheet.lost is not None:  # what was read before means nothing for a GPU that has gone
                for name in FIXED_NAMES:
                    sheet.values.pop(name, None)
                    sheet.mark(name, *sheet.lost)
        modes = [sheet.values.get(name) for name in ("mig_mode", "ecc_mode")]
        if modes != self._modes:
            ask.forget_refusals()
            self._modes = modes

    def _compare_identity(self, ask: WatchedAsk) -> None:
        """Notice that another GPU was read: the UUID is asked last, so that it holds for all readings."""
        if self.uuid is None or self.lost:
            return
        sheet = DeviceSheet()
        sheet.read("uuid", ask, "nvmlDeviceGetUUID")
        now = sheet.values.get("uuid", self.uuid)
        self.is_another = (now.decode() if isinstance(now, bytes) else now) != self.uuid

    def _watch_events(self, ask: WatchedAsk) -> None:
        """Register this GPU's Xids with the event set, where GPU and driver have such events."""
        self.address = ctypes.cast(ask.handle, ctypes.c_void_p).value
        if self._event_set is not None:
            DeviceSheet().read("events", ask, "nvmlDeviceRegisterEvents", _XID_EVENTS, self._event_set)


def _only(readings: dict[str, Any]) -> dict[str, Any]:
    """Those that are fixed."""
    return {name: readings[name] for name in FIXED_NAMES if name in readings}


# --- the program

_PATIENCE_SECONDS = 0.5  # then the rows that are done are sent
_EVENT_WAIT_MS = 1000
_EVENT_BACK_OFF_SECONDS = 5.0
_RETRY_SECONDS = 3.0  # between two tries of nvmlInit
_LEAST_PAUSE_SECONDS = 0.01
_ANNOUNCING_SECONDS = 20.0  # own choice: a call that has not crashed by then does so when it likes
_TRIES = 20  # by one process; then a fresh one
# A library that does not match the driver stays loaded; only a new process loads another one.
_FINAL_STATES = ("version_mismatch", "failed")


class Child:
    """The life of one sampler process."""

    def __init__(self, output: int, root: str, spared: Spared | None = None) -> None:
        """Write lines to `output`; /proc is found under `root`.

        With `spared`, calls have ended such a process: they are left out, and the others announced for a
        while.
        """
        self._spared = spared
        self._began = monotonic()
        self._output = output
        self._root = root
        self._interval = FAST_SECONDS
        self._paused = False
        self._sequence = 0
        self._xids: deque[tuple[int, int, float, str | None]] = deque()

    def run(self) -> None:
        """Start NVML, then tick until a fresh process should take over."""
        for _ in range(_TRIES):
            self._let_sleep()
            start = _Start()
            Thread(target=start.run, daemon=True).start()
            began = monotonic()
            while not start.wait(FAST_SECONDS):
                self._emit({"kind": "starting", "call": start.call, "seconds": monotonic() - began})
                self._obey(0.0)
            if start.failure is None:
                self._sample(start)
                return
            self._emit({"kind": "failed", "document": start.failure})
            if start.failure["state"] in _FINAL_STATES:
                return
            self._obey(_RETRY_SECONDS)
        self._emit({"kind": "gone", "reason": "a fresh start"})

    def _let_sleep(self) -> None:
        """Return once a GPU is awake: initialising NVML would wake them all."""
        while True:
            count, asleep = read_sleeping(self._root)
            if not asleep or len(asleep) < count:
                return
            self._emit({"kind": "asleep", "at": time(), "bus_ids": list(asleep.values())})
            self._obey(self._interval)

    def _sleepers(self, rows: list[WatchedRow]) -> dict[int, str]:
        """The bus ids of GPUs that are asleep and were never asked, by NVML index."""
        count, asleep = read_sleeping(self._root)
        if count != len(rows):  # nobody knows which index is whose
            return {}
        return {row.index: asleep[row.index] for row in rows if row.is_new and row.index in asleep}

    def _sample(self, start: _Start) -> None:
        careful = self._spared is not None
        pynvml = start.pynvml
        if self._spared is not None:
            pynvml = CarefulLibrary(pynvml, self._announce, self._spared)
        self._emit({"kind": "library", "document": start.library, "count": start.count})
        event_set = start.event_set if start.count else None
        rows = [WatchedRow(pynvml, index, event_set, self._root) for index in range(start.count)]
        census = _Census(pynvml, start.count, self._root)
        if event_set is not None:
            Thread(target=self._watch_events, args=(pynvml, event_set, rows), daemon=True).start()
        workers = Workers(1 if careful else len(rows) + 2)
        pace, peers_asked = Pace(len(rows)), False
        asleep: dict[int, str] = self._sleepers(rows)
        while True:
            began, used = monotonic(), process_time()
            waited = waited_seconds()
            if self._paused:
                self._emit({"kind": "paused"})
                pace.hurry()
            else:
                if self._xids:
                    pace.hurry()
                tier = PROMPT if pace.is_prompt_due(began) else FAST
                if pace.is_slow_due(began, self._interval):
                    tier = SLOW
                if tier == SLOW:
                    asleep = self._sleepers(rows)
                reading = [row for row in rows if row.asking_since is None and row.index not in asleep]
                todo: list[Callable[[], None]] = [partial(row.read, tier, rows) for row in reading]
                if tier == SLOW and census.asking_since is None:
                    todo.append(census.read)
                workers.start(todo).done.wait(_PATIENCE_SECONDS)
                if not peers_asked and len(rows) > 1 and all(row.asking_since is None for row in rows):
                    peers_asked = True
                    asking = workers.start(partial(row.read, PEERS, rows) for row in rows)
                    asking.done.wait(_PATIENCE_SECONDS)
                reason = _reason_to_end(rows, census)
                moved = reason is not None and all(row.gone is None for row in rows)
                waited = waited_seconds() - waited
                self._emit_tick(rows, began, waited, asleep, with_readings=not moved)
                pace.note_tick(began, process_time() - used, slow=tier == SLOW, prompt=tier == PROMPT)
                if reason is not None:
                    self._emit({"kind": "gone", "reason": reason})
                    return
            is_asking = any(row.asking_since is not None for row in rows)
            now = monotonic()
            pause = pause_seconds(self._interval, now - began, is_asking=is_asking)
            self._obey(min(pause, max(_LEAST_PAUSE_SECONDS, pace.seconds_to_prompt(now))))

    def _emit_tick(
        self,
        rows: list[WatchedRow],
        began: float,
        waited: float,
        asleep: Mapping[int, str],
        *,
        with_readings: bool,
    ) -> None:
        now = monotonic()
        answers = {row.index: row.pop_answer() for row in rows if with_readings}
        self._sequence += 1
        xids = [self._xids.popleft() for _ in range(len(self._xids))]
        by_tier = {
            tier: {index: taken[tier] for index, taken in answers.items() if tier in taken}
            for tier in (FAST, SLOW, PEERS)
        }
        late = {row.index: wait for row in rows if (wait := row.late(now)) is not None}
        self._emit(
            {"kind": "tick", "sequence": self._sequence, "at": time(), "seconds": now - began}
            | {
                **by_tier,
                "late": late,
                "asleep": asleep,
                "xids": xids,
                PROMPT: any(PROMPT in taken for taken in answers.values()),
                "interval": self._interval,
                "waited": waited,
            }
            | {"longest": max((row.pop_longest() for row in rows), key=itemgetter(1), default=("", 0.0))}
        )

    def _watch_events(self, pynvml: Any, event_set: Any, rows: list[WatchedRow]) -> None:
        """Collect the Xids that the driver reports; runs in a thread of its own."""
        import ctypes

        while True:
            try:
                event = pynvml.nvmlEventSetWait_v2(event_set, _EVENT_WAIT_MS)
            except Exception as error:  # noqa: BLE001 - a timeout means no event; others back off
                if not type(error).__name__.endswith("Timeout"):
                    sleep(_EVENT_BACK_OFF_SECONDS)
                continue
            address = ctypes.cast(event.device, ctypes.c_void_p).value
            for row in rows:
                if row.address == address:
                    self._xids.append((row.index, int(event.eventData), time(), row.uuid))

    def _obey(self, seconds: float) -> None:
        """Wait `seconds`, obeying commands on standard input; exit the process when it closes."""
        until = monotonic() + seconds
        while True:
            left = until - monotonic()
            if not select.select([0], [], [], max(0.0, left))[0]:
                return
            text = os.read(0, 4096)
            if not text:
                os._exit(0)
            for line in text.splitlines():
                command = json.loads(line)
                self._interval = float(command.get("interval", self._interval))
                self._paused = bool(command.get("paused", self._paused))
            if command.get("now") or "paused" in command:
                return

    def _announce(self, index: int, call: str) -> None:
        if monotonic() - self._began < _ANNOUNCING_SECONDS:
            self._emit({"kind": CALLING, "index": index, "call": call})

    def _emit(self, message: dict[str, Any]) -> None:
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        while line:
            line = line[os.write(self._output, line) :]


class _Start:
    """nvmlInit and the calls right after it, in a thread of its own: any of them may never return."""

    def __init__(self) -> None:
        self.call = "nvmlInit"
        self.failure: dict[str, Any] | None = None
        self.library: dict[str, Any] = {}
        self.count = 0
        self.pynvml: Any = None
        self.event_set: Any = None
        self._done = False

    def run(self) -> None:
        try:
            self.pynvml, self.count = open_library(self._note_call, self.library.update)
        except Exception as error:  # noqa: BLE001 - describe_failure judges it
            self.failure = describe_failure(error)
        else:
            self.event_set = self._make_event_set()
        self._done = True

    def _note_call(self, call: str) -> None:
        self.call = call

    def wait(self, seconds: float) -> bool:
        until = monotonic() + seconds
        while not self._done and monotonic() < until:
            sleep(0.005)
        return self._done

    def _make_event_set(self) -> Any:
        self.call = "nvmlEventSetCreate"
        try:
            return self.pynvml.nvmlEventSetCreate()
        except Exception:  # noqa: BLE001 - without events there are still the kernel log's Xids
            return None


class _Census:
    """Whether NVML's count of GPUs or the kernel's driver has changed; read like a row, after the rows.

    An initialised library may go on answering after its driver was replaced: the version file shows it.
    """

    def __init__(self, pynvml: Any, count: int, root: str) -> None:
        self.asking_since: float | None = None
        self.changed: str | None = None
        self._pynvml = pynvml
        self._count = count
        self._version_file = os.path.join(root, "proc/driver/nvidia/version")
        self._version = self._read_version()

    def read(self) -> None:
        self.asking_since = monotonic()
        try:
            count = self._pynvml.nvmlDeviceGetCount()
        except Exception:  # noqa: BLE001 - the rows notice a driver that has gone
            count = self._count
        if count != self._count:
            self.changed = f"NVML counts {count} GPUs, not {self._count}"
        elif self._read_version() != self._version:
            self.changed = "the kernel driver has changed"
        self.asking_since = None

    def _read_version(self) -> bytes:
        try:
            with open(self._version_file, "rb") as file:
                return file.read(4096)
        except OSError:
            return b""


def _reason_to_end(rows: list[WatchedRow], census: _Census) -> str | None:
    """Why a fresh process should replace this one, or None."""
    for row in rows:
        if row.gone is not None:
            return f"the driver has gone (NVML {row.gone})"
        if row.is_another:
            return f"NVML index {row.index} is another GPU than before"
    return census.changed


def pause_seconds(interval: float, elapsed: float, *, is_asking: bool) -> float:
    """Seconds until the next tick, after one of `elapsed`; less if a GPU is late (`DEADLINE_SECONDS`)."""
    if is_asking:
        return min(interval, FAST_SECONDS)
    return max(_LEAST_PAUSE_SECONDS, interval - elapsed)


def main() -> None:
    """Sample until the parent ends, or until a fresh process should take over."""
    die_with_parent(int(sys.argv[1]))
    keep_little_memory()
    output = os.dup(1)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)  # a library that prints must not corrupt the lines
    spared = (
        None
        if len(sys.argv) < 3
        else [(index, call, words) for index, call, words in json.loads(sys.argv[2])]
    )
    Child(output, host_root(os.environ), spared).run()
    os._exit(0)  # a call that never returns must not keep the process


if __name__ == "__main__":
    main()
