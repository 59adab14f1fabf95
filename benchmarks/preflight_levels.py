"""How long `gpudiag preflight` takes: level instant on simulated GPUs, one of them hung, and quick without a GPU.

    python benchmarks/preflight_levels.py

Prints the median and the slowest of several runs, the median of processor time, and the promise. With `+driver-costs`
calls into the driver take what they did on an H100 (gpudiag/simulate/driver_costs.toml).
"""

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping

from gpudiag.simulate.loader import load_scenario
from gpudiag.simulate.session import open_session

_RUNS = 5
_CASES = (
    ("gh200", "instant", 0.9),
    ("gh200+driver-costs", "instant", 0.9),
    ("h100x8", "instant", 2.0),
    ("h100x8+hang:6", "instant", 2.0),
    ("none", "quick", 30.0),
)


def main() -> None:
    """Measure and print every case."""
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}, {_RUNS} runs each")
    for scenario, level, promise in _CASES:
        walls, used = zip(*_measure(scenario, level), strict=True)
        median, slowest = statistics.median(walls), max(walls)
        print(
            f"{scenario:20} {level:8} median {median:6.2f} s, slowest {slowest:6.2f} s, "
            f"of a processor {statistics.median(used):5.2f} s, promised {promise:.1f} s"
        )


def _measure(scenario: str, level: str) -> list[tuple[float, float]]:
    with open_session(load_scenario(scenario)) as session, tempfile.TemporaryDirectory() as state:
        environment = {**session.environment, "GPUDIAG_STATE_DIR": state}
        return [_run(level, environment) for _ in range(_RUNS)]


def _run(level: str, environment: Mapping[str, str]) -> tuple[float, float]:
    started, used = time.perf_counter(), _processor_seconds()
    subprocess.run(
        [sys.executable, "-m", "gpudiag", "preflight", "--level", level, "--reason"],
        env=environment,
        stdout=subprocess.DEVNULL,
        check=False,
    )
    return time.perf_counter() - started, _processor_seconds() - used


def _processor_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
