"""What `gpudiag run` reports of healthy, stalled, slow and failing jobs of gloo ranks. Prints Markdown.

    python -m benchmarks.run_matrix [--only KIND] [--repeats N] [--ranks N] [--cuda]

A healthy job may show no stall and no slow rank; a stalled one is ended by gpudiag once it is reported, with
rank and line; a slow or failing one must name its rank, a slow one its line too. The step beside the job's
own may be a part of it (ranks that meet several times in a step) or not known, and never some steps. Exit
status 1 where one is not reported right.

With --cuda the ranks train on the stand-in for CUDA and NCCL (tests/cuda_stand_in): whoever waits for a GPU,
and so for the other ranks, spins in the driver and takes a whole processor. Two processors or more a rank
show it as it is.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("run_jobs") / "train.py"
POLLS = Path(__file__).with_name("hang_jobs") / "polls.py"
LIMIT_SECONDS = 900.0
HEALTHY_SECONDS = 120  # of a job that polls and goes on
MOST_OF_A_STEP = 1.5  # of the reported step: two of them are too many


@dataclass(frozen=True, slots=True)
class Case:
    """One job: its kind, what must be reported, and how long it is."""

    kind: str
    code: str  # empty: nothing
    rank: int | None = None
    place: str = ""  # a part of the message
    steps: int = 60
    polls: bool = False  # a job of hang_jobs/polls.py


CASES = (
    Case("none", ""),
    Case("first_step", ""),
    Case("compile", ""),
    Case("evaluates", ""),
    Case("evaluates_alone", ""),
    Case("checkpoints", ""),
    Case("uneven", ""),
    Case("sleeps:2", "job.stalled", 2, "in load_batch", 10_000),
    Case("other_call:1", "job.stalled", 1, "recv", 10_000),
    Case("slow:1", "job.rank_slow", 1, "in compute", 350),
    Case("slow_loader:3", "job.rank_slow", 3, "in load_batch", 350),
    Case("soft_lock", "job.stalled", 1, "its owner is gone", polls=True),
    Case("queue_timeout", "job.stalled", 1, "in queue_timeout", polls=True),
    Case("all_loaders", "job.stalled", None, "worker", polls=True),
    Case("flag_ring", "job.stalled", 1, "the FIFO", polls=True),
    Case("missing_node", "job.stalled", None, "for 1 of 2 nodes", polls=True),
    Case("healthy_slow_loader", "", polls=True),
    Case("healthy_download", "", polls=True),
    Case("healthy_consumer", "", polls=True),
    Case("raises:1", "job.rank_failed", 1, "this batch has no labels"),
    Case("exits:2", "job.rank_failed", 2, "exit code 3"),
    Case("killed:2", "job.rank_failed", 2, "SIGKILL"),
)


# Modes of tests/cuda_stand_in/jobs/training.py, in which rank 1 does something at step 20.
CUDA_CASES = (
    Case("healthy", "", steps=300),
    Case("evaluate", "", steps=120),
    Case("longkernel", "", steps=23),
    Case("slow", "job.rank_slow", 1, "training.py", 400),
    Case("fifo", "job.stalled", 1, "in load_batch", 10_000),
    Case("pyloop", "job.stalled", 1, "in tokenize", 10_000),
    Case("stop", "job.stalled", 1, "stopped", 10_000),
    Case("skip", "job.stalled", None, "on rank 1", 10_000),
    Case("size", "job.stalled", None, "float32 [1048576]", 10_000),
    Case("order", "job.stalled", None, "in exchange", 10_000),
    Case("spin", "job.stalled", None, "GPU", 10_000),
    Case("loader", "job.stalled", 1, "loader", 10_000),
    Case("uneven", "job.stalled", 1, "barrier", 10_000),
    Case("exit", "job.stalled", 1, "ended with exit status 0", 10_000),
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What was reported of a job."""

    right: bool
    words: str
    seconds: float
    step_seconds: float | None
    own_step_seconds: float | None  # as the job printed it
    stood_seconds: float | None


def _command(case: Case, ranks: int, verdict: Path, *, cuda: bool) -> list[str]:
    watched = [
        *(sys.executable, "-m", "gpudiag", "run", "--on-stall", "kill", "--verdict", str(verdict), "--"),
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"),
    ]
    if case.polls:
        return _command_that_polls(watched, case, verdict.parent)
    if not cuda:
        return [*watched, str(SCRIPT)]
    job = [
        "-m",
        "tests.cuda_stand_in.jobs.training",
        case.kind,
        str(verdict.parent),
        "--steps",
        str(case.steps),
    ]
    return [sys.executable, "-m", "tests.cuda_stand_in", "h100x8", "--", *watched, *job]


def _command_that_polls(watched: list[str], case: Case, folder: Path) -> list[str]:
    """The command of a job that polls, with the FIFO and the lock file that it finds in its folder."""
    (folder / "model.lock").touch()
    if not (folder / "fifo").exists():
        os.mkfifo(folder / "fifo")
    soon = [*watched[:4], "--stall-after", "15s", *watched[4:]]
    if case.kind == "missing_node":
        soon = [word for word in soon if word != "--standalone"]
        soon[-1:] = [
            "--nnodes=2",
            "--rdzv-backend=c10d",
            "--rdzv-endpoint=127.0.0.1:29477",
            "--nproc-per-node=2",
        ]
    return [*soon, str(POLLS), case.kind, str(folder)]


def run_case(case: Case, ranks: int, work: str, folder: Path, *, cuda: bool) -> Answer:
    """Run one job under gpudiag, and hold the report against what is so."""
    verdict = folder / "verdict.json"
    verdict.unlink(missing_ok=True)
    command = _command(case, ranks, verdict, cuda=cuda)
    environment = {
        **os.environ,
        **{"KIND": case.kind, "STEPS": str(case.steps), "WORK": work, "OMP_NUM_THREADS": "1"},
        "CHECKPOINT": str(folder / "checkpoint.pt"),
        "SECONDS_TO_RUN": str(HEALTHY_SECONDS),
    }
    began = time.monotonic()
    done = subprocess.run(
        command, env=environment, check=False, timeout=LIMIT_SECONDS, capture_output=True, text=True
    )
    seconds = time.monotonic() - began
    document = json.loads(verdict.read_text())
    findings = document["findings"]
    steps = (document["steps"] or {}).get("seconds")
    stood = next((stall["stood_seconds"] for stall in document["stalls"] if stall["reported"]), None)
    printed = re.search(r"^step ([0-9.]+) s$", done.stderr, re.MULTILINE)
    own = float(printed[1]) if printed else None
    right = _is_right(case, findings) and not (steps and own and steps > MOST_OF_A_STEP * own)
    return Answer(right, _words(findings), seconds, steps, own, stood)


def _is_right(case: Case, findings: list[dict[str, Any]]) -> bool:
    if not case.code:
        return not findings
    first: dict[str, Any] = findings[0] if findings else {"code": "", "message": "", "subject": {}}
    return (
        first["code"] == case.code
        and first["subject"].get("rank") == case.rank
        and case.place in first["message"]
    )


def _words(findings: list[dict[str, Any]]) -> str:
    return "; ".join(f"{one['code']}: {one['message']}" for one in findings) or "nothing"


def rows(cases: list[Case], ranks: int, repeats: int, work: str, *, cuda: bool) -> Iterator[bool]:
    """Print a row for each run; whether it was reported right."""
    with tempfile.TemporaryDirectory() as name:
        for case in cases:
            for _ in range(repeats):
                answer = run_case(case, ranks, work, Path(name), cuda=cuda)
                step, own, stood = (
                    "-" if number is None else f"{number:.{digits}f} s"
                    for number, digits in (
                        (answer.step_seconds, 3),
                        (answer.own_step_seconds, 3),
                        (answer.stood_seconds, 0),
                    )
                )
                right = "right" if answer.right else "WRONG"
                print(
                    f"| {case.kind} | {right} | {answer.seconds:.0f} s | {step} | {own}"
                    f" | {stood} | {answer.words} |",
                    flush=True,
                )
                yield answer.right


def main() -> int:
    """Run all cases; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--ranks", type=int, help="4, or 2 with --cuda")
    parser.add_argument("--work", default="0.05")
    parser.add_argument("--cuda", action="store_true")
    options = parser.parse_args()
    known = CUDA_CASES if options.cuda else CASES
    cases = [case for case in known if not options.only or case.kind.partition(":")[0] in options.only]
    print(
        "| job | right | it took | step | its own | reported after | what was reported |\n"
        "| --- | --- | --- | --- | --- | --- | --- |"
    )
    ranks = options.ranks or (2 if options.cuda else 4)
    results = list(rows(cases, ranks, options.repeats, options.work, cuda=options.cuda))
    print(
        "\n"
        f"{sum(results)} of {len(results)} right; load {os.getloadavg()[0]:.0f}, {os.cpu_count()} processors"
    )
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
