"""gpudiag nccl-test against torchrun with a bare all_reduce loop: time to the verdict, and busbw.

Both on two gloo ranks, interleaved round by round, with the same sizes, warm-ups and iterations.
gpudiag also verifies every timed buffer; the loop looks at nothing. The loop runs twice a round: the
difference of its bandwidth from its own is this machine's noise. Of the rounds, the lower
quartile of the times counts for bandwidth: what else runs makes a round slower, never faster.

    python benchmarks/nccl_test_start.py [ROUNDS]
"""

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

RANKS = 2
WARMUP, ITERATIONS = 5, 20
START_SIZES = (1024,)
SIZES = tuple(1024 * 4**step for step in range(9))  # 1 KiB to 64 MiB
COMPARED = (1024, 1024**2, 64 * 1024**2)
LIMIT_SECONDS = 300.0

AIM_START_RATIO = 0.6
AIM_BUSBW_SHARE = 0.03

_LOOP = Path(__file__).with_name("bare_all_reduce.py")


@dataclass
class Side:
    """What one of the two took, over the rounds: wall seconds, and seconds per operation by size."""

    start_seconds: list[float] = field(default_factory=list)
    sweep_seconds: list[float] = field(default_factory=list)
    p50: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    mean: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))


def run_timed(command: list[str]) -> tuple[float, str]:
    """Wall seconds and standard output of a command that must succeed."""
    before = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
    seconds = time.perf_counter() - before
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return seconds, done.stdout


def gpudiag_command(sizes: tuple[int, ...]) -> list[str]:
    """The nccl-test run over those sizes, which follow each other by a factor of four."""
    flags = ["--backend", "gloo", "--nproc", str(RANKS), "--step-factor", "4"]
    flags += ["--min-bytes", str(sizes[0]), "--max-bytes", str(sizes[-1])]
    flags += ["--warmup", str(WARMUP), "--iterations", str(ITERATIONS), "--json"]
    return [sys.executable, "-m", "gpudiag", "nccl-test", *flags]


def loop_command(sizes: tuple[int, ...]) -> list[str]:
    """The bare loop over those sizes, under torchrun."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    numbers = [",".join(map(str, sizes)), str(WARMUP), str(ITERATIONS)]
    return [sys.executable, *launcher, str(_LOOP), *numbers]


def measure_gpudiag(side: Side) -> None:
    """Add one round of gpudiag to `side`."""
    seconds, _ = run_timed(gpudiag_command(START_SIZES))
    side.start_seconds.append(seconds)
    seconds, output = run_timed(gpudiag_command(SIZES))
    side.sweep_seconds.append(seconds)
    report: Any = json.loads(output)
    if report["outcome"] != "pass":
        sys.exit(f"gpudiag found something: {report['findings']}")
    for result in report["results"]:
        side.p50[result["size_bytes"]].append(result["time_p50_seconds"])
        side.mean[result["size_bytes"]].append(result["time_average_seconds"])


def measure_loop(side: Side) -> None:
    """Add one round of the loop to `side`."""
    seconds, _ = run_timed(loop_command(START_SIZES))
    side.start_seconds.append(seconds)
    seconds, output = run_timed(loop_command(SIZES))
    side.sweep_seconds.append(seconds)
    for line in output.splitlines():
        result: Any = json.loads(line)
        side.p50[result["size_bytes"]].append(result["p50"])
        side.mean[result["size_bytes"]].append(result["mean"])


def busbw_gb_per_second(size_bytes: int, seconds: float) -> float:
    """The bus bandwidth of all_reduce, as nccl-tests defines it."""
    return size_bytes / seconds * 2 * (RANKS - 1) / RANKS / 1e9


def print_machine(rounds: int) -> None:
    """Print where and with what this was measured."""
    cores = len(os.sched_getaffinity(0))
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    print(f"{platform.machine()}, {cores} cores, Linux {platform.release()}, load before {load}")
    print(f"Python {platform.python_version()}, torch {version('torch')}, gpudiag {version('gpudiag')}")
    print(f"{RANKS} gloo ranks, {WARMUP} warm-ups, {ITERATIONS} iterations, medians of {rounds} rounds\n")


def print_start(ours: Side, theirs: Side) -> None:
    """Print the time to the verdict, and the ratio."""
    print("start to verdict, s              gpudiag  torchrun + loop  ratio")
    for name, mine, other in (
        ("one size (1 KiB)", ours.start_seconds, theirs.start_seconds),
        ("nine sizes, 1 KiB to 64 MiB", ours.sweep_seconds, theirs.sweep_seconds),
    ):
        a, b = statistics.median(mine), statistics.median(other)
        print(f"  {name:30} {a:8.2f} {b:16.2f} {a / b:6.2f}")
    print(f"  aim for one size: at most {AIM_START_RATIO}\n")


def least_disturbed(rounds: list[float]) -> float:
    """The lower quartile of the times of some rounds."""
    return statistics.quantiles(rounds, n=4)[0] if len(rounds) > 1 else rounds[0]


def print_bandwidth(ours: Side, theirs: Side, again: Side, statistic: str) -> None:
    """Print the bus bandwidths side by side, from the p50 or the mean of the iterations."""
    print(f"busbw GB/s from the {statistic:25} gpudiag        loop  difference  loop to itself")
    for size in COMPARED:
        mine, other, control = (
            busbw_gb_per_second(size, least_disturbed(getattr(side, statistic)[size]))
            for side in (ours, theirs, again)
        )
        print(
            f"  {size:>10} B {'':32} {mine:8.4f} {other:11.4f}"
            f" {mine / other - 1:+11.1%} {control / other - 1:+15.1%}"
        )
    print(f"  aim: within {AIM_BUSBW_SHARE:.0%}\n")


def main() -> None:
    """Run the rounds and print the tables."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    ours, theirs, again = Side(), Side(), Side()
    print_machine(rounds)
    steps = [(measure_gpudiag, ours), (measure_loop, theirs), (measure_loop, again)]
    for turn in range(rounds):
        for measure, side in steps[turn % 3 :] + steps[: turn % 3]:
            measure(side)
    print_start(ours, theirs)
    print_bandwidth(ours, theirs, again, "p50")
    print_bandwidth(ours, theirs, again, "mean")


if __name__ == "__main__":
    main()
