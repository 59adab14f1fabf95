"""What `gpudiag run` costs a job: its throughput with and without, in pairs, and processor time.

    python -m benchmarks.run_cost [--pairs N] [--ranks N] [--steps N] [--work SECONDS]

A pair is the same job twice, one after the other, in turn with and without first. Steps per second are the
job's own figure. The processor time of gpudiag is what its verdict reports of itself, and what `gpudiag run`
of a command that does nothing takes (its start and its end), against that of all the job's processes, its
launcher included; it hardly depends on what else the machine does, which the throughput does.
"""

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

SCRIPT = Path(__file__).with_name("run_jobs") / "train.py"
_STEP = re.compile(r"^step ([\d.]+) s$", re.MULTILINE)
LIMIT_SECONDS = 3600.0


def run_once(options: argparse.Namespace, verdict: Path | None) -> tuple[float, float]:
    """Steps per second of one run, watched if `verdict` is given, and its processor seconds."""
    job = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={options.ranks}"),
        str(SCRIPT),
    ]
    watched = [sys.executable, "-m", "gpudiag", "run", "--verdict", str(verdict), "--"] if verdict else []
    environment = {
        **os.environ,
        **{"KIND": "none", "STEPS": str(options.steps), "WORK": str(options.work), "OMP_NUM_THREADS": "1"},
    }
    before = _seconds_of_children()
    done = subprocess.run(
        [*watched, *job],
        env=environment,
        check=True,
        timeout=LIMIT_SECONDS,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    found = _STEP.search(done.stderr)
    if found is None:
        raise RuntimeError(f"the job printed no step time: {done.stderr[-500:]}")
    return 1.0 / float(found[1]), _seconds_of_children() - before


def _seconds_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure_start() -> float:
    """Processor seconds of `gpudiag run` of a command that does nothing: what each job pays once."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(sys.executable, "-m", "gpudiag", "run", "--quiet", "--verdict", f"{folder}/v.json"),
            "--",
            "true",
        ]
        pid = os.posix_spawn(sys.executable, command, os.environ)
        _, status, used = os.wait4(pid, 0)
    if status:
        raise RuntimeError(f"gpudiag run of `true` ended with wait status {status}")
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Print a line for each pair, and the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--work", type=float, default=0.05)
    options = parser.parse_args()
    ratios, shares = [], []
    start = median(measure_start() for _ in range(5))
    print(f"start and end of gpudiag: {start:.2f} s of a processor, counted in below\n")
    print(
        "| pair | steps/s without | steps/s with | with / without | gpudiag's processor time | share |\n|"
        + " --- |" * 6
    )
    with tempfile.TemporaryDirectory() as folder:
        for pair in range(options.pairs):
            verdict = Path(folder) / f"{pair}.json"
            runs = {
                way: run_once(options, verdict if way else None)
                for way in ((False, True) if pair % 2 else (True, False))
            }
            cost = json.loads(verdict.read_text())["cost"]
            (speed, job), (speed_with, _) = runs[False], runs[True]
            ratio = speed_with / speed
            own = start + cost["processor_seconds"]
            share = own / job
            ratios.append(ratio)
            shares.append(share)
            print(
                f"| {pair + 1} | {speed:.3f} | {speed_with:.3f} | {ratio:.4f} |"
                f" {own:.2f} s of {job:.0f} s | {share:.2%} |",
                flush=True,
            )
    print(
        "\n"
        f"median with / without: {median(ratios):.4f}; median share of the job's"
        f" processor time: {median(shares):.2%}"
    )
    print(f"load {os.getloadavg()[0]:.0f} on {os.cpu_count()} processors, {options.ranks} ranks")


if __name__ == "__main__":
    main()
