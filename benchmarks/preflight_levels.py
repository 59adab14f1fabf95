"""How long `gpudiag preflight` takes, and how much of a processor.

    python benchmarks/preflight_levels.py

First level instant on simulated GPUs, one of them hung, and quick without a GPU: the median and the slowest
of several runs, beside the promise. Then quick and standard without a GPU, in pairs: as it is, with one
import of torch for the command, and with an import for each set of ranks and for the question what torch
sees. The ratio is of the processor time of the command with all that it starts; beside other work on the
machine only that ratio counts.

Prints the median and the slowest of several runs, the median of processor time, and the promise. With
`+driver-costs` calls into the driver take what they did on an H100 (gpudiag/simulate/driver_costs.toml).
"""

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence

from gpudiag.simulate.loader import load_scenario
from gpudiag.simulate.session import open_session

_RUNS = 5
_PAIRS = 3
_COMMAND = (sys.executable, "-m", "gpudiag")
# The same command without a fork server: then each set of ranks has a template that imports torch for itself.
_IMPORTING_EACH_TIME = (
    sys.executable,
    "-c",
    "from gpudiag.runs.fork_servers import ForkServers\n"
    "ForkServers.server = lambda *_, **__: None\n"
    "from gpudiag.cli.main import run\n"
    "run()",
)
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
    print(f"\nprocessor time (user and system) without a GPU, medians of {_PAIRS} pairs")
    for level in ("quick", "standard"):
        once, each, ratio = _compare_imports(level)
        print(f"{level:9} one import {once:6.2f} s, an import each time {each:6.2f} s, ratio {ratio:.2f}")


def _measure(scenario: str, level: str) -> list[tuple[float, float]]:
    with open_session(load_scenario(scenario)) as session, tempfile.TemporaryDirectory() as state:
        environment = {**session.environment, "GPUDIAG_STATE_DIR": state}
        return [_run(level, environment) for _ in range(_RUNS)]


def _run(level: str, environment: Mapping[str, str]) -> tuple[float, float]:
    started, used = time.perf_counter(), _used_so_far()
    subprocess.run(
        [*_COMMAND, "preflight", "--level", level, "--reason"],
        env=environment,
        stdout=subprocess.DEVNULL,
        check=False,
    )
    return time.perf_counter() - started, _used_so_far() - used


def _used_so_far() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _compare_imports(level: str) -> tuple[float, float, float]:
    """Processor seconds with one import and with one each time, and the median of the pairs' ratios."""
    pairs = []
    with tempfile.TemporaryDirectory() as state:
        environment = {**os.environ, "GPUDIAG_STATE_DIR": state}
        for _ in range(_PAIRS):
            pair = [_processor_seconds(how, level, environment) for how in (_COMMAND, _IMPORTING_EACH_TIME)]
            pairs.append(pair)
    once, each = (statistics.median(column) for column in zip(*pairs, strict=True))
    return once, each, statistics.median(first / second for first, second in pairs)


def _processor_seconds(how: Sequence[str], level: str, environment: Mapping[str, str]) -> float:
    """Of the command and of all that it started and waited for.

    Raises:
        RuntimeError: the command did not pass.
    """
    argv = [*how, "preflight", "--level", level, "--expect-gpus", "0", "--reason"]
    quiet = [(os.POSIX_SPAWN_OPEN, descriptor, os.devnull, os.O_WRONLY, 0) for descriptor in (1, 2)]
    pid = os.posix_spawn(argv[0], argv, environment, file_actions=quiet)
    _, status, usage = os.wait4(pid, 0)
    if os.waitstatus_to_exitcode(status):
        raise RuntimeError(f"{' '.join(argv)} ended with status {os.waitstatus_to_exitcode(status)}")
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
