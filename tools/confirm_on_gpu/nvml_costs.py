"""What each call into NVML costs on this driver: one JSON line for each call, and one for each kind of look.

    python -m tools.confirm_on_gpu.nvml_costs
    gpudiag simulate h100x8+driver-costs -- python -m tools.confirm_on_gpu.nvml_costs

The first GPU is looked at as `gpudiag list` does, then as the service's sampler does: its fast ticks, its
slow ones. Then each field is asked for alone. Times are of the wall clock and, in `processor_seconds`, of a
processor: a driver may poll.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from time import perf_counter, sleep, thread_time
from typing import Any

from gpudiag.probe.nvml.ask import Ask, DeviceSheet
from gpudiag.probe.nvml.device import fields_of, read_device
from gpudiag.probe.nvml.device import plan_of_tier as plan_of
from gpudiag.probe.nvml.library import load_pynvml
from gpudiag.sampler.child import FAST, SLOW, WatchedRow

LISTING, FAST_TICK, SLOW_TICK, ALONE = "list", "fast tick", "slow tick", "alone"
_LOOKS = {LISTING: 10, FAST_TICK: 20, SLOW_TICK: 5}
_BETWEEN_SLOW_TICKS_SECONDS = 0.6  # GPM's shortest window
_FIELDS = "nvmlDeviceGetFieldValues"


class Timed:
    """pynvml with a stopwatch around each call; `looking`: what the calls are for."""

    def __init__(self, pynvml: Any) -> None:
        """Time the calls of this module."""
        self.looking = ""
        self.taken: dict[str, list[tuple[str, float, float]]] = defaultdict(list)  # look, wall, processor
        self._pynvml = pynvml

    def __getattr__(self, name: str) -> Any:
        """That function, timed; what is no function of NVML as it is."""
        value = getattr(self._pynvml, name)
        if not name.startswith("nvml") or not callable(value):
            return value

        def call(*arguments: Any, **named: Any) -> Any:
            wall, processor = perf_counter(), thread_time()
            try:
                return value(*arguments, **named)
            finally:
                taken = (self.looking, perf_counter() - wall, thread_time() - processor)
                self.taken[_name_of(name, arguments)].append(taken)

        return call


def _name_of(name: str, arguments: Sequence[Any]) -> str:
    """The function; of one that asks for fields, how many or which."""
    if name != _FIELDS:
        return name
    numbers = list(arguments[1])
    return f"{name}, field {numbers[0]}" if len(numbers) == 1 else f"{name}, {len(numbers)} fields"


def main() -> int:
    """Look, and print; 1 where there is no GPU."""
    nvml = Timed(load_pynvml())
    nvml.looking = "start"
    nvml.nvmlInit()
    if nvml.nvmlDeviceGetCount() == 0:
        print("NVML lists no GPU", file=sys.stderr)
        return 1
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    row = WatchedRow(nvml, 0, None, "/")
    looks: dict[str, tuple[Callable[[], None], float]] = {
        LISTING: (lambda: read_device(Ask(nvml, handle), DeviceSheet()), 0.0),
        FAST_TICK: (lambda: row.read(FAST, [row]), 0.0),
        SLOW_TICK: (lambda: row.read(SLOW, [row]), _BETWEEN_SLOW_TICKS_SECONDS),
    }
    row.read(SLOW, [row])  # the first reads the identity and all that is fixed
    for look, (take, pause) in looks.items():
        nvml.looking = look
        times = []
        for _ in range(_LOOKS[look]):
            sleep(pause)
            wall, processor = perf_counter(), thread_time()
            take()
            times.append((perf_counter() - wall, thread_time() - processor))
        _print(look=look, **_figures(times))
    nvml.looking = ALONE
    for number in dict.fromkeys(n for tier in ("fast", "slow", "fixed") for n in fields_of(plan_of(tier))):
        for _ in range(3):
            DeviceSheet().read("field", nvml.nvmlDeviceGetFieldValues, handle, [number])
    for call, taken in sorted(nvml.taken.items()):
        counts = Counter(look for look, _, _ in taken)
        per_look = {look: counts[look] / times for look, times in _LOOKS.items()}
        _print(call=call, per_look=per_look, **_figures([(wall, used) for _, wall, used in taken]))
    return 0


def _figures(times: Sequence[tuple[float, float]]) -> dict[str, float]:
    walls = [wall for wall, _ in times]
    return {
        "median_seconds": statistics.median(walls),
        "longest_seconds": max(walls),
        "processor_seconds": statistics.median(used for _, used in times),
    }


def _print(**row: Any) -> None:
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    sys.exit(main())
