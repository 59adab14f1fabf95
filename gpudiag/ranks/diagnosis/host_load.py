"""How much slower a process runs on this host now than if it were idle, by the host's own counters."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

# The least seconds between samples, and how long a sample counts for, about.
_SAMPLE_SECONDS = 0.5
_MEMORY_SECONDS = 2.0

# Limits are ten times the expected time, so that two tasks per processor need no longer ones.
_USUAL_QUEUE = 2.0

# Beyond this the counters only show that the host is overwhelmed, not by how much.
_LARGEST_FACTOR = 30.0
_LARGEST_SHARE = 0.9  # of the time stolen or stalled; a limit that is never reached would find nothing

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_STEAL_FIELD = 8  # of the `cpu` line in /proc/stat (proc_stat(5)), the label counted as 0


@dataclass(frozen=True, slots=True)
class Counters:
    """The host's counters: runnable tasks now; seconds since boot that were stolen or stalled."""

    runnable: int
    stolen_seconds: float  # by the hypervisor, sum over all processors
    stalled_seconds: float  # while every task waited for memory, as when the host swaps


class HostLoad:
    """The factor, at least 1, by which time limits on this host must be longer."""

    def __init__(
        self,
        read: Callable[[], Counters] | None = None,
        processors: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take the first sample; `processors` are those that this process may use."""
        self._read = read or read_counters
        self._processors = processors or len(os.sched_getaffinity(0))
        self._clock = clock
        self._sampled_at = clock()
        self._counters = self._read()
        self._factor = 1.0

    def factor(self) -> float:
        """How many times longer things take than on an idle host, over the last seconds; 1 when idle."""
        now = self._clock()
        elapsed = now - self._sampled_at
        if elapsed >= _SAMPLE_SECONDS:
            before, self._counters, self._sampled_at = self._counters, self._read(), now
            sample = self._judge(before, self._counters, elapsed)
            weight = min(1.0, elapsed / _MEMORY_SECONDS)
            self._factor = max(sample, self._factor + weight * (sample - self._factor))
        return self._factor

    def _judge(self, before: Counters, after: Counters, elapsed: float) -> float:
        queue = max(1.0, after.runnable / self._processors / _USUAL_QUEUE)
        stolen = (after.stolen_seconds - before.stolen_seconds) / (elapsed * self._processors)
        stalled = (after.stalled_seconds - before.stalled_seconds) / elapsed
        left = (1.0 - _as_share(stolen)) * (1.0 - _as_share(stalled))
        return min(_LARGEST_FACTOR, queue / left)


def read_counters() -> Counters:
    """The host's counters now; what the kernel or a container does not show counts as 0."""
    runnable, stolen = 0, 0.0
    for line in _read("/proc/stat").splitlines():
        label, *values = line.split()
        if label == "cpu" and len(values) >= _STEAL_FIELD:
            stolen = int(values[_STEAL_FIELD - 1]) / _TICKS_PER_SECOND
        elif label == "procs_running":
            runnable = int(values[0]) - 1  # less this process
    return Counters(runnable, stolen, _stalled_seconds())


def _stalled_seconds() -> float:
    """Seconds in which all tasks stalled on memory (psi.rst, the line `full`); I/O shows nothing."""
    for line in _read("/proc/pressure/memory").splitlines():
        if line.startswith("full "):
            return int(line.rpartition("total=")[2]) / 1e6
    return 0.0


def _as_share(value: float) -> float:
    return min(_LARGEST_SHARE, max(0.0, value))


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
