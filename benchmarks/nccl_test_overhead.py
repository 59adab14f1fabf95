"""What nccl-test's verification and side channel cost the figures: against bare loops in the same ranks.

The same gloo ranks run, round by round and in changing order, for each size:

    loop        all_reduce on one and the same buffer, as people write it: it stays in the cache
    loop again  the same once more: its difference from itself is this machine's noise
    cold loop   all_reduce on one buffer after the other, as gradients come
    gpudiag     nccl-test's own sweep, every timed buffer verified
    no channel  the same, with the side channel to the watchdog switched off

    python benchmarks/nccl_test_overhead.py [RANKS [ROUNDS]]

Times are those of the slowest rank in each iteration. Of all iterations of a variant the table has the
lower quartile: what else runs on a machine makes an iteration slower, never faster.
"""

import os
import platform
import statistics
import sys
from collections import defaultdict
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from gpudiag.ranks.agents.launch import run_ranks
from gpudiag.ranks.rank_run import RankRun

SIZES = (8, 64, 1024, 8 * 1024, 64 * 1024, 256 * 1024, 1024**2, 4 * 1024**2, 16 * 1024**2, 64 * 1024**2)
VARIANTS = ("loop", "loop again", "cold loop", "gpudiag", "no channel")
_HERE = Path(__file__).parent
AIM_LARGE, AIM_SMALL, AIM_CHANNEL = 0.02, 0.10, 0.01


def measure(ranks: int, rounds: int) -> RankRun:
    """The run whose events hold every rank's times."""
    arguments = {"sizes": list(SIZES), "rounds": rounds}
    places = [str(_HERE), os.environ.get("PYTHONPATH", "")]
    run = run_ranks(
        "overhead_ranks:run",
        run_id="benchmark",
        world_size=ranks,
        arguments=arguments,
        variables={"PYTHONPATH": os.pathsep.join(place for place in places if place)},
    )
    if run.incidents:
        sys.exit(f"the ranks did not get through: {run.incidents[0]}")
    return run


def collect(run: RankRun) -> Mapping[tuple[int, str], float]:
    """Seconds by size and variant: the lower quartile of all its iterations."""
    by_burst: dict[tuple[int, str, int], dict[int, list[int]]] = defaultdict(dict)
    for event in run.events:
        data: Any = event.data
        if data.get("kind") == "times":
            by_burst[data["size_bytes"], data["variant"], data["round"]][event.rank] = data[
                "times_nanoseconds"
            ]
    found: dict[tuple[int, str], list[int]] = defaultdict(list)
    for (size, variant, _), by_rank in by_burst.items():
        found[size, variant] += [max(times) for times in zip(*by_rank.values(), strict=True)]
    return {key: statistics.quantiles(times, n=4)[0] / 1e9 for key, times in found.items()}


def print_table(found: Mapping[tuple[int, str], float], ranks: int) -> None:
    """Print the times, and how far gpudiag is from each loop."""
    heads = ("loop us", "cold us", "gpudiag us", "to loop", "to cold", "channel", "loop/loop", "busbw GB/s")
    print(f"{'SIZE':>10} " + " ".join(f"{head:>10}" for head in heads))
    for size in SIZES:
        loop, again, cold, ours, bare = (found[size, variant] for variant in VARIANTS)
        busbw = size / ours * 2 * (ranks - 1) / ranks / 1e9
        print(
            f"{size:>10} {loop * 1e6:>10.1f} {cold * 1e6:>10.1f} {ours * 1e6:>10.1f}"
            f" {ours / loop - 1:>+10.1%} {ours / cold - 1:>+10.1%} {ours / bare - 1:>+10.1%}"
            f" {again / loop - 1:>+10.1%} {busbw:>10.4f}"
        )
    print(
        f"aims: within {AIM_LARGE:.0%} at 1 MiB and up, {AIM_SMALL:.0%} at 8 B;"
        f" channel at most {AIM_CHANNEL:.0%}"
    )


def main() -> None:
    """Run the ranks and print the table."""
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 15
    cores = len(os.sched_getaffinity(0))
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    print(f"{platform.machine()}, {cores} cores, Linux {platform.release()}, load before {load}")
    print(
        f"Python {platform.python_version()}, torch {version('torch')}, {ranks} gloo ranks, {rounds} rounds\n"
    )
    print_table(collect(measure(ranks, rounds)), ranks)


if __name__ == "__main__":
    main()
