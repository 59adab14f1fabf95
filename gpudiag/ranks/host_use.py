"""What the host did to a rank while it measured: processor time, waiting for a processor, throttling."""

import contextlib
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from gpudiag.model.reading import Missing, MissingReason, Reading

_Number = TypeVar("_Number", int, float)

_NANOSECONDS = 1e9
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_STEAL_FIELD = 8  # of a cpu line in /proc/stat (proc_stat(5)), the label counted as 0


@dataclass(frozen=True, slots=True)
class HostUse:
    """Counters of one rank's main thread and of the processors it may run on, or their growth.

    Seconds and counts since the thread, the machine or the cgroup started.
    """

    cpu_seconds: Reading[float]  # on a processor
    runqueue_seconds: Reading[float]  # ready to run, and waiting for a processor
    involuntary_switches: Reading[int]
    steal_seconds: Reading[float]  # taken by the hypervisor from the allowed processors, all together
    throttled_seconds: Reading[float]  # by the cgroup's processor quota
    thermal_throttles: Reading[int]  # of the allowed processors, all together
    allowed_cpus: tuple[int, ...]

    def since(self, before: "HostUse") -> "HostUse":
        """How much each counter has grown since `before`."""
        return HostUse(
            cpu_seconds=_growth(before.cpu_seconds, self.cpu_seconds),
            runqueue_seconds=_growth(before.runqueue_seconds, self.runqueue_seconds),
            involuntary_switches=_growth(before.involuntary_switches, self.involuntary_switches),
            steal_seconds=_growth(before.steal_seconds, self.steal_seconds),
            # It may have been moved under a quota meanwhile.
            throttled_seconds=self.throttled_seconds
            if isinstance(before.throttled_seconds, Missing)
            else _growth(before.throttled_seconds, self.throttled_seconds),
            thermal_throttles=_growth(before.thermal_throttles, self.thermal_throttles),
            allowed_cpus=self.allowed_cpus,
        )


def read_host_use() -> HostUse:
    """The counters of the calling thread, now."""
    allowed = tuple(sorted(os.sched_getaffinity(0)))
    thread = Path(f"/proc/self/task/{threading.get_native_id()}")
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


def _read_schedstat(thread: Path) -> tuple[Reading[float], Reading[float]]:
    """Seconds on a processor, and seconds ready and waiting for one (sched-stats.rst of the kernel)."""
    text = _read(thread / "schedstat")
    if isinstance(text, Missing):
        return text, text
    on_cpu, waiting = text.split()[:2]
    return int(on_cpu) / _NANOSECONDS, int(waiting) / _NANOSECONDS


def _read_involuntary_switches(thread: Path) -> Reading[int]:
    text = _read(thread / "status")
    return text if isinstance(text, Missing) else int(_value_after("nonvoluntary_ctxt_switches:", text) or 0)


def _read_steal(allowed: tuple[int, ...]) -> Reading[float]:
    text = _read(Path("/proc/stat"))
    if isinstance(text, Missing):
        return text
    names = {f"cpu{number}" for number in allowed}
    lines = [line.split() for line in text.splitlines()]
    return sum(int(line[_STEAL_FIELD]) for line in lines if line and line[0] in names) / _TICKS_PER_SECOND


def _read_throttled() -> Reading[float]:
    """Seconds that this cgroup was held back, in cgroup v2 (microseconds) or v1 (nanoseconds)."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            text, name, per_second = _read(Path(f"/sys/fs/cgroup{group}/cpu.stat")), "throttled_usec", 1e6
        elif "cpu" in controllers.split(","):
            text, name, per_second = _read(Path(f"/sys/fs/cgroup/cpu{group}/cpu.stat")), "throttled_time", 1e9
        else:
            continue
        if not isinstance(text, Missing) and (value := _value_after(name, text)) is not None:
            return int(value) / per_second
    return Missing(MissingReason.NOT_SUPPORTED, "no processor quota")


def _read_thermal_throttles(allowed: tuple[int, ...]) -> Reading[int]:
    counts = []
    for number in allowed:
        with contextlib.suppress(OSError, ValueError):
            path = Path(f"/sys/devices/system/cpu/cpu{number}/thermal_throttle/core_throttle_count")
            counts.append(int(path.read_text()))
    return sum(counts) if counts else Missing(MissingReason.NOT_SUPPORTED, "the processor does not count it")


def _value_after(name: str, text: str) -> str | None:
    return next((line.split()[1] for line in text.splitlines() if line.split()[:1] == [name]), None)


def _read(path: Path) -> Reading[str]:
    try:
        return path.read_text()
    except OSError as error:
        return Missing(MissingReason.NOT_SUPPORTED, f"{path}: {error.strerror}")
