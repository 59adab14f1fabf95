"""How long `gpudiag preflight` takes: level instant on simulated GPUs, one of them hung, and quick without a GPU.

    python benchmarks/preflight_levels.py

Prints the median and the slowest of several runs, and beside them the promise.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping

from gpudiag.simulate.loader import load_scenario
from gpudiag.simulate.session import open_session

_RUNS = 5
_CASES = (("h100x8", "instant", 2.0), ("h100x8+hang:6", "instant", 2.0), ("none", "quick", 30.0))


def main() -> None:
    """Measure and print every case."""
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}, {_RUNS} runs each")
    for scenario, level, promise in _CASES:
        seconds = _measure(scenario, level)
        median, slowest = statistics.median(seconds), max(seconds)
        print(
            f"{scenario:16} {level:8} median {median:6.2f} s, slowest {slowest:6.2f} s, promised {promise:.0f} s"
        )


def _measure(scenario: str, level: str) -> list[float]:
    with open_session(load_scenario(scenario)) as session, tempfile.TemporaryDirectory() as state:
        environment = {**session.environment, "GPUDIAG_STATE_DIR": state}
        return [_run(level, environment) for _ in range(_RUNS)]


def _run(level: str, environment: Mapping[str, str]) -> float:
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "gpudiag", "preflight", "--level", level, "--reason"],
        env=environment,
        stdout=subprocess.DEVNULL,
        check=False,
    )
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
