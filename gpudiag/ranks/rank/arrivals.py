"""When a rank arrived at each timed collective, and when it left: the record that shows who is late."""

import contextlib
import os
import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from gpudiag.linux.cgroup import UNIFIED, find_folders, parse_numbers, read_file, throttled_seconds
from gpudiag.linux.namespaces import read_machine
from gpudiag.linux.proc import read_schedule, read_status, read_text
from gpudiag.model.reading import Missing, MissingReason, Reading

_NANOSECONDS = 1e9
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_STEAL_FIELD = 8  # of a cpu line in /proc/stat (proc_stat(5)), the label counted as 0

# Enough to identify a straggler, little enough to send: two numbers per iteration.
_KEPT_ITERATIONS = 4000

_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True, slots=True)
class HostUse:
    """Counters of one rank's main thread and its processors since they started; or their growth."""

    cpu_seconds: Reading[float]  # running on a processor
    runqueue_seconds: Reading[float]  # ready to run, waiting for a processor
    involuntary_switches: Reading[int]
    steal_seconds: Reading[float]  # taken by the hypervisor, sum over the allowed processors
    throttled_seconds: Reading[float]  # by the cgroup's processor quota
    thermal_throttles: Reading[int]  # sum over the allowed processors
    allowed_cpus: tuple[int, ...]

    def since(self, before: "HostUse") -> "HostUse":
        """How much each counter has grown since `before`."""
        return HostUse(
            cpu_seconds=_growth(before.cpu_seconds, self.cpu_seconds),
            runqueue_seconds=_growth(before.runqueue_seconds, self.runqueue_seconds),
            involuntary_switches=_growth(before.involuntary_switches, self.involuntary_switches),
            steal_seconds=_growth(before.steal_seconds, self.steal_seconds),
            # It may have been moved into a cgroup with a quota since.
            throttled_seconds=self.throttled_seconds
            if isinstance(before.throttled_seconds, Missing)
            else _growth(before.throttled_seconds, self.throttled_seconds),
            thermal_throttles=_growth(before.thermal_throttles, self.thermal_throttles),
            allowed_cpus=self.allowed_cpus,
        )


def read_host_use() -> HostUse:
    """The counters of the calling thread, now."""
    allowed = tuple(sorted(os.sched_getaffinity(0)))
    thread = f"self/task/{threading.get_native_id()}"
    cpu_seconds, runqueue_seconds = _read_schedstat(thread)
    return HostUse(
        cpu_seconds=cpu_seconds,
        runqueue_seconds=runqueue_seconds,
        involuntary_switches=_read_involuntary_switches(thread),
        steal_seconds=_read_steal(allowed),
        throttled_seconds=_read_throttled(),
        thermal_throttles=_read_thermal_throttles(allowed),
        allowed_cpus=allowed,
    )


def _growth(before: Reading[_Number], after: Reading[_Number]) -> Reading[_Number]:
    if isinstance(before, Missing):
        return before
    return after if isinstance(after, Missing) else after - before


def _read_schedstat(thread: str) -> tuple[Reading[float], Reading[float]]:
    """Seconds on a processor, and seconds ready but waiting for one (sched-stats.rst of the kernel)."""
    try:
        return read_schedule(thread)[:2]
    except OSError as error:
        missing = Missing(MissingReason.NOT_SUPPORTED, f"{error.filename}: {error.strerror}")
        return missing, missing


def _read_involuntary_switches(thread: str) -> Reading[int]:
    try:
        return int(read_status(thread).get("nonvoluntary_ctxt_switches", 0))
    except OSError as error:
        return Missing(MissingReason.NOT_SUPPORTED, f"{error.filename}: {error.strerror}")


def _read_steal(allowed: tuple[int, ...]) -> Reading[float]:
    text = _read(Path("/proc/stat"))
    if isinstance(text, Missing):
        return text
    names = {f"cpu{number}" for number in allowed}
    lines = [line.split() for line in text.splitlines()]
    return sum(int(line[_STEAL_FIELD]) for line in lines if line and line[0] in names) / _TICKS_PER_SECOND


def _read_throttled() -> Reading[float]:
    """Seconds that this control group was throttled."""
    folders = find_folders(read_text("/proc/self/cgroup"))
    for folder in (folders[name] for name in (UNIFIED, "cpu") if name in folders):
        seconds = throttled_seconds(parse_numbers(read_file(folder / "cpu.stat")))
        if seconds is not None:
            return seconds
    return Missing(MissingReason.NOT_SUPPORTED, "no processor quota")


def _read_thermal_throttles(allowed: tuple[int, ...]) -> Reading[int]:
    counts = []
    for number in allowed:
        with contextlib.suppress(OSError, ValueError):
            path = Path(f"/sys/devices/system/cpu/cpu{number}/thermal_throttle/core_throttle_count")
            counts.append(int(path.read_text()))
    return sum(counts) if counts else Missing(MissingReason.NOT_SUPPORTED, "the processor does not count it")


def _read(path: Path) -> Reading[str]:
    try:
        return path.read_text()
    except OSError as error:
        return Missing(MissingReason.NOT_SUPPORTED, f"{path}: {error.strerror}")


@dataclass(frozen=True, slots=True)
class Arrivals:
    """One rank's timed iterations: CLOCK_MONOTONIC of its machine, in nanoseconds."""

    clock: str  # the same for ranks that share a clock
    first_iteration: int
    arrived: tuple[int, ...]
    left: tuple[int, ...]
    host_use: HostUse  # growth between the first iteration and the end of the entry
    # Whether all earlier work was done when the rank arrived. If not, because a GPU was still at work, the
    # rank arrives as late as it arrived at the collective before. Empty: it always was.
    awaited: tuple[bool, ...] = ()


class ArrivalRecorder:
    """A rank's own record; costs two appends per timed iteration. Times: CLOCK_MONOTONIC in nanoseconds."""

    def __init__(self) -> None:
        """Start empty; only timed iterations are recorded."""
        self._arrived: deque[int] = deque(maxlen=_KEPT_ITERATIONS)
        self._left: deque[int] = deque(maxlen=_KEPT_ITERATIONS)
        self._last_iteration = -1
        self._seen_ends: deque[bool] = deque(maxlen=_KEPT_ITERATIONS)
        self._started = False  # an iteration has started, but its collective has not
        self._ahead = False  # the rank runs ahead of what a GPU has still to do
        self._inside = False
        self._before: HostUse | None = None

    def start_iteration(self, iteration: int) -> None:
        """Record that the next collective is that of this timed iteration."""
        if self._before is None:
            self._before = read_host_use()
        self._last_iteration = iteration
        self._started = True

    def arrive(self, now_ns: int) -> None:
        """Record that the rank is about to enter a collective; only the first one of an iteration counts."""
        if self._started:
            self._started, self._inside = False, True
            self._arrived.append(now_ns)
            self._seen_ends.append(not self._ahead)

    def leave(self, now_ns: int, *, queued: bool = False) -> None:
        """Record that the rank came back from a collective; `queued`: a GPU has still to do it."""
        self._ahead = queued
        if self._inside:
            self._inside = False
            self._left.append(now_ns)

    def read(self) -> Arrivals | None:
        """What was recorded; None if nothing was timed, or an iteration was left halfway."""
        if self._before is None or len(self._arrived) != len(self._left) or not self._arrived:
            return None
        return Arrivals(
            clock=read_machine().clock,
            first_iteration=self._last_iteration + 1 - len(self._arrived),
            arrived=tuple(self._arrived),
            left=tuple(self._left),
            host_use=read_host_use().since(self._before),
            awaited=() if all(self._seen_ends) else tuple(self._seen_ends),
        )
