"""What it costs to ask a GPU for its activity by NVML's GPM, call by call.

    python benchmarks/activity_cost.py [--looks 200]
    gpudiag simulate h100x8+busy:0 -- python benchmarks/activity_cost.py

Prints for each call that `gpudiag serve` makes every five seconds the median, the 99th percentile and what that is of a
second's time; then a whole look with and without the activity. On a simulated machine the calls return at once, so that
these figures are gpudiag's own side only: run it on a machine with a Hopper or later GPU for the driver's.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpudiag.probe.nvml import activity as activity_module
from gpudiag.probe.nvml.activity import read_activity, release_samples
from gpudiag.probe.nvml.ask import DeviceSheet
from gpudiag.probe.nvml.child import load_pynvml
from gpudiag.probe.nvml.device import read_identity, read_state
from gpudiag.reference.declaration import Activity
from gpudiag.reference.readings import READINGS
from gpudiag.sampler.tiers import SLOW_SECONDS, WatchedAsk

_READINGS = [one for one in READINGS if isinstance(one.question, Activity)]


class Timed:
    """pynvml with a stopwatch around each call of GPM."""

    def __init__(self, pynvml: Any) -> None:
        self.pynvml = pynvml
        self.seconds: dict[str, list[float]] = {}

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.pynvml, name)
        if not name.startswith("nvmlGpm"):
            return value

        def call(*arguments: Any) -> Any:
            began = time.perf_counter()
            try:
                return value(*arguments)
            finally:
                self.seconds.setdefault(name, []).append(time.perf_counter() - began)

        return call


def row(name: str, seconds: list[float], per_second: float) -> str:
    """A line of the table: times in microseconds, and the share of one processor that they come to."""
    median, worst = statistics.median(seconds), sorted(seconds)[int(0.99 * (len(seconds) - 1))]
    return f"{name:<44} {median * 1e6:>9.1f} {worst * 1e6:>9.1f} {median * per_second * 100:>9.4f} %"


def timed(count: int, work: Callable[[], None]) -> list[float]:
    """How long each of so many runs took."""
    taken = []
    for _ in range(count):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return taken


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--looks", type=int, default=200)
    options = parser.parse_args()
    nvml = Timed(load_pynvml())
    nvml.nvmlInit()
    count = nvml.nvmlDeviceGetCount()
    ask = WatchedAsk(nvml, nvml.nvmlDeviceGetHandleByIndex(0))
    activity_module._SHORTEST_WINDOW_SECONDS = 0.0  # the looks below come one after the other
    identity = DeviceSheet()
    read_identity(ask, identity)
    simulated = os.environ.get("GPUDIAG_SIMULATED")
    print(
        f"{identity.values.get('name')}, {count} GPUs, {'SIMULATED: gpudiag alone' if simulated else 'real NVML'}"
    )

    def look() -> None:
        read_activity(ask, DeviceSheet(), _READINGS)

    look()
    probe = DeviceSheet()
    read_activity(ask, probe, _READINGS)
    if not probe.values:
        raise SystemExit(f"no activity here: {probe.missing[_READINGS[0].name]}")
    activity = timed(options.looks, look)
    print(f"{'per GPU, every 5 s':<44} {'median us':>9} {'p99 us':>9} {'of a core':>11}")
    for name, seconds in nvml.seconds.items():
        if len(seconds) > 2:
            print(row(name, seconds, 1 / SLOW_SECONDS))
    print(row(f"all of it ({len(_READINGS)} metrics)", activity, 1 / SLOW_SECONDS))

    def whole() -> None:
        ask.fields.clear()
        read_state(ask, DeviceSheet())

    with_it: list[float] = []
    without: list[float] = []
    for _ in range(options.looks):  # in turn, so that both see the same load of the machine
        for repeated, taken in ((True, with_it), (False, without)):
            ask.repeated = repeated
            taken += timed(1, whole)
    print(row("a whole look with it", with_it, 1 / SLOW_SECONDS))
    print(row("a whole look without it", without, 1 / SLOW_SECONDS))
    print(f"with / without: {statistics.median(with_it) / statistics.median(without):.2f}")
    release_samples(ask)


if __name__ == "__main__":
    main()
