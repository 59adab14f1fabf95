"""What the watchdog costs: gloo all_reduce with and without the side channel, in one run.

Every rank runs operations by turns, announced to the agent as nccl-test does it, and bare.
The agent looks at the ranks all the while; its own processor time is reported beside.

    python benchmarks/watchdog_cost.py [--ranks 2] [--percent 100] [--json]
"""

import argparse
import json
import os
import platform
import resource
import statistics
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from gpudiag.ranks.agents.launch import run_ranks
from gpudiag.ranks.rank.context import RankContext

_ROOT = str(Path(__file__).parents[1])
_SIZES = {"8 B": 2, "1 KiB": 256, "64 KiB": 16384, "1 MiB": 262144}
_ITERATIONS = {"8 B": 8000, "1 KiB": 8000, "64 KiB": 4000, "1 MiB": 1000}


def main() -> None:
    """Run it and print a line per size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--percent", type=int, default=100, help="of the usual number of iterations")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    before = resource.getrusage(resource.RUSAGE_SELF)
    run = run_ranks(
        "benchmarks.watchdog_cost:measure",
        run_id="benchmark",
        world_size=options.ranks,
        arguments={
            "iterations": {name: count * options.percent // 100 for name, count in _ITERATIONS.items()}
        },
        variables={"PYTHONPATH": _ROOT},
    )
    after = resource.getrusage(resource.RUSAGE_SELF)
    agent_seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    result = {
        "ranks": options.ranks,
        "processors": os.cpu_count(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "sizes": run.results[0]["sizes"],
        "calls_seconds": run.results[0]["calls_seconds"],
        "agent_processor_share": agent_seconds / run.seconds,
    }
    print(json.dumps(result) if options.json else _render(result))


def measure(context: RankContext) -> dict[str, Any]:
    """Seconds per operation by size, announced and bare; the entry of each rank."""
    import torch.distributed as dist

    dist.init_process_group(
        "gloo", init_method=context.init_method, rank=context.rank, world_size=context.world_size
    )
    context.progress.enter_stage("measure")
    counter = _Counter()
    sizes = {name: _measure_size(context, counter, name, elements) for name, elements in _SIZES.items()}
    return {"sizes": sizes, "calls_seconds": _time_calls(context, counter)}


class _Counter:
    """Sequences of collectives and timed iterations, over the run."""

    sequence = 0
    iteration = 0


def _measure_size(context: RankContext, counter: _Counter, name: str, elements: int) -> Mapping[str, float]:
    """Median seconds of an announced and of a bare operation, by turns: whatever disturbs meets both alike."""
    import torch
    import torch.distributed as dist

    tensor, progress = torch.zeros(elements), context.progress
    times: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(2 * context.arguments["iterations"][name]):
        announced = turn % 2 == 0
        before = time.perf_counter()
        if announced:
            progress.before_iteration(counter.iteration)
            progress.before_operation(counter.sequence, "all_reduce", "float32", elements, 1.0)
            dist.all_reduce(tensor)
            progress.after_operation(counter.sequence)
            counter.iteration, counter.sequence = counter.iteration + 1, counter.sequence + 1
        else:
            dist.all_reduce(tensor)
        times[announced].append(time.perf_counter() - before)
    return {"announced": statistics.median(times[True]), "bare": statistics.median(times[False])}


def _time_calls(context: RankContext, counter: _Counter) -> float:
    """Processor seconds that the calls of one iteration take by themselves, with no collective between."""
    progress, repeats = context.progress, 10_000
    before = time.thread_time()
    for _ in range(repeats):
        progress.before_iteration(counter.iteration)
        progress.before_operation(counter.sequence, "all_reduce", "float32", 2, 1.0)
        progress.after_operation(counter.sequence)
        counter.iteration, counter.sequence = counter.iteration + 1, counter.sequence + 1
    return (time.thread_time() - before) / repeats


def _render(result: dict[str, Any]) -> str:
    lines = [
        f"{result['ranks']} gloo ranks on {result['processors']} processors, Python {result['python']}, "
        f"torch {result['torch']}; median time of an all_reduce, in microseconds",
        f"{'size':>8} {'bare':>9} {'announced':>10} {'cost':>7}",
    ]
    for name, seconds in result["sizes"].items():
        bare, announced = seconds["bare"] * 1e6, seconds["announced"] * 1e6
        lines.append(f"{name:>8} {bare:9.1f} {announced:10.1f} {announced / bare - 1:7.1%}")
    lines.append(f"The calls of one iteration alone: {result['calls_seconds'] * 1e6:.1f} microseconds.")
    lines.append(f"The agent used {result['agent_processor_share']:.2%} of one processor.")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
