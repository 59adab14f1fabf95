"""gpudiag train against a bare DDP script under torchrun: two ranks, five steps, start to verdict.

Interleaved round by round. gpudiag also proves every step, tries a checkpoint, repeats the first
steps and times as many again; the script does none of it.

    python benchmarks/train_start.py [ROUNDS]
"""

import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

RANKS, STEPS = 2, 5
LIMIT_SECONDS = 120.0
AIM_RATIO = 0.6
_SCRIPT = Path(__file__).with_name("bare_ddp.py")

GPUDIAG = (
    *(sys.executable, "-m", "gpudiag", "train", "--backend", "gloo"),
    *("--nproc", str(RANKS), "--steps", str(STEPS)),
)
BARE = (
    *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
    *("--nproc-per-node", str(RANKS), str(_SCRIPT), str(STEPS)),
)


def run_timed(command: tuple[str, ...], shows: str) -> tuple[float, float]:
    """Wall seconds, and those of processors, of a command that must show its result.

    An abort after that is counted in: torch's gloo ends so now and then, while it is torn down.
    """
    before, used_before = time.perf_counter(), _processor_seconds()
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
    seconds = time.perf_counter() - before
    if done.returncode != 0 and shows in done.stdout:
        print(f"  (a run of {command[2]} showed its result, and then ended with {done.returncode})")
    elif done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return seconds, _processor_seconds() - used_before


def _processor_seconds() -> float:
    """Of all processes that were started here and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Run the rounds and print the medians and their ratio."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    cores = len(os.sched_getaffinity(0))
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    print(f"{platform.machine()}, {cores} cores, Linux {platform.release()}, load before {load}")
    print(f"Python {platform.python_version()}, torch {version('torch')}, gpudiag {version('gpudiag')}")
    times: dict[str, list[float]] = {"gpudiag": [], "torchrun": []}
    used: dict[str, list[float]] = {"gpudiag": [], "torchrun": []}
    for turn in range(rounds):
        order = (("gpudiag", GPUDIAG, "PASS"), ("torchrun", BARE, "loss"))
        for name, command, shows in order if turn % 2 else reversed(order):
            seconds, processors = run_timed(command, shows)
            times[name].append(seconds)
            used[name].append(processors)
    ours, theirs = (statistics.median(times[name]) for name in ("gpudiag", "torchrun"))
    print(f"{RANKS} gloo ranks, {STEPS} steps, medians of {rounds} rounds")
    print(
        f"  gpudiag train, start to verdict  {ours:6.2f} s  {sorted(round(t, 2) for t in times['gpudiag'])}"
    )
    print(
        f"  torchrun, bare DDP script        {theirs:6.2f} s"
        f"  {sorted(round(t, 2) for t in times['torchrun'])}"
    )
    print(f"  ratio {ours / theirs:.2f}, aim at most {AIM_RATIO}")
    ours, theirs = (statistics.median(used[name]) for name in ("gpudiag", "torchrun"))
    print(
        f"  of processors {ours:.2f} s and {theirs:.2f} s, ratio"
        f" {ours / theirs:.2f}, which load hardly changes"
    )


if __name__ == "__main__":
    main()
