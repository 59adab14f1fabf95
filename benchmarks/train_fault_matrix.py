"""Does `gpudiag train` find every fault that it can inject, and nothing in runs without one?

Injects each fault N times into DDP and FSDP2 on two gloo ranks, each time with another seed, and runs
without a fault M times. Prints Markdown: how often the code and the rank were right.

    python benchmarks/train_fault_matrix.py [--times 20] [--clean 50] [--strategy ddp --strategy fsdp2]
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from importlib.metadata import version
from typing import Any

LIMIT_SECONDS = 180.0
STEPS = 6

# fault -> the code of the first finding, and the rank that it must name
FAULTS: dict[str, tuple[str, int | None]] = {
    "nosync:3": ("train.not_averaged", None),
    "sumgrad": ("train.gradients_summed", None),
    "samedata": ("train.same_samples", None),
    "noset_epoch": ("train.order_repeats", None),
    "badinit": ("train.initial_parameters", None),
    "onebias": ("train.tensor_not_averaged", None),
    "nan:1@3": ("train.not_finite", 1),
    "uneven": ("train.uneven_steps", 1),
    "slow:1:50": ("train.straggler", 1),
    "kill:1@3": ("rank.died", 1),
    "stop:1@3": ("rank.stopped", 1),
    "oom:1": ("train.out_of_memory", 1),
}


def run_training(*flags: str) -> Any:
    """The report of one run."""
    command = [sys.executable, "-m", "gpudiag", "train", "--backend", "gloo", "--steps", str(STEPS), "--json"]
    done = subprocess.run(
        [*command, *flags], capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
    )
    try:
        return json.loads(done.stdout)
    except ValueError:
        sys.exit(f"gpudiag train {' '.join(flags)} ended with {done.returncode}:\n{done.stderr[-2000:]}")


def is_right(report: Any, code: str, rank: int | None) -> bool:
    """Whether the first finding has that code, and names that rank."""
    if not report["findings"]:
        return False
    first = report["findings"][0]
    return bool(first["code"] == code and (rank is None or first["subject"].get("rank") == rank))


def count_found(strategy: str, fault: str, times: int) -> tuple[int, list[str]]:
    """How often a fault was found and named, and what was said instead."""
    code, rank = FAULTS[fault]
    found, others = 0, []
    for seed in range(1, times + 1):
        report = run_training("--strategy", strategy, "--inject", fault, "--seed", str(seed))
        if is_right(report, code, rank):
            found += 1
        else:
            others.append(f"seed {seed}: {[finding['code'] for finding in report['findings']]}")
    return found, others


def main() -> None:
    """Run the matrix and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--clean", type=int, default=50)
    parser.add_argument("--strategy", action="append")
    options = parser.parse_args()
    strategies = options.strategy or ["ddp", "fsdp2"]
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    print(f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, load before {load}, ", end="")
    print(f"Python {platform.python_version()}, torch {version('torch')}\n")
    print(f"| fault | {' | '.join(strategies)} |\n| --- |{' --- |' * len(strategies)}", flush=True)
    said: list[str] = []
    for fault in FAULTS:
        cells = []
        for strategy in strategies:
            found, others = count_found(strategy, fault, options.times)
            cells.append(f"{found} of {options.times}")
            said += [f"{strategy} {fault} {other}" for other in others]
        print(f"| `{fault}` | {' | '.join(cells)} |", flush=True)
    failed = [
        [finding["code"] for finding in report["findings"]]
        for seed in range(1, options.clean + 1)
        if (report := run_training("--strategy", ",".join(strategies), "--seed", str(seed)))["outcome"]
        not in ("pass", "warn")
    ]
    print(
        f"\n{options.clean} clean runs of {', '.join(strategies)}: {len(failed)} without a PASS or WARN {failed or ''}"
    )
    for line in said:
        print(f"- {line}")


if __name__ == "__main__":
    main()
