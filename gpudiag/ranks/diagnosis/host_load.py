"""How much slower than alone a process gets along on this host now, by the host's own counters."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

# Sampled at most this often; a sample counts for about so long.
_SAMPLE_SECONDS = 0.5
_MEMORY_SECONDS = 2.0

# Limits are ten times as long as what is expected, so that two tasks for each processor need no more.
_USUAL_QUEUE = 2.0

# Beyond this the counters say that the host is overwhelmed, and no more.
_LARGEST_FACTOR = 30.0
_LARGEST_SHARE = 0.9  # of the time taken away; a limit that is never reached would name nobody

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_STEAL_FIELD = 8  # of the `cpu` line in /proc/stat (proc_stat(5)), the label counted as 0


@dataclass(frozen=True, slots=True)
class Counters:
    """What the host counts: runnable tasks now; seconds since boot that were stolen or waited away."""

    runnable: int
    stolen_seconds: float  # by the hypervisor, from all processors together
    stalled_seconds: float  # in which every task waited for memory, as when the host swaps


class HostLoad:
    """A factor from 1 up by which limits on this host are to be longer."""

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
        """How many times as long as alone things take, over the last seconds: 1 on an idle host."""
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
    """The host's counters now; what a kernel or a container does not show counts as nothing."""
    runnable, stolen = 0, 0.0
    for line in _read("/proc/stat").splitlines():
        label, *values = line.split()
        if label == "cpu" and len(values) >= _STEAL_FIELD:
            stolen = int(values[_STEAL_FIELD - 1]) / _TICKS_PER_SECOND
        elif label == "procs_running":
            runnable = int(values[0]) - 1  # this process, which looks
    return Counters(runnable, stolen, _stalled_seconds())


def _stalled_seconds() -> float:
    """Seconds in which no task got on for want of memory (psi.rst of the kernel, the line `full`).

    Not for want of a disk: one process that waits for its file makes that line rise on an idle host.
    """
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
