"""`gpudiag hang` on jobs of two NCCL ranks that share a GPU: four that hang, and a healthy one.

    python -m tools.confirm_on_gpu.hang_jobs [KIND,...]

All run at once under torchrun. Prints a JSON line for each: the answer, the rank that it blames, and whether
that is right.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import IO, Any

# As in hang_job.py, which imports torch.
HEALTHY, SPIN = "healthy", "spin"
KINDS = (HEALTHY, "fifo", "skip", "loop", SPIN)
FAULTY_STEP = 20
_START_SECONDS = 90.0
_SETTLE_SECONDS = 5.0
_LOOK_SECONDS = 60.0
_JOB = Path(__file__).with_name("hang_job.py")
# What the verdict must name, besides rank 1: the line's function, or what the records of collectives show.
WORDS = {"fifo": ("load_batch", "pipe"), "skip": ("all_reduce",), "loop": ("tokenize",)}


@dataclass(frozen=True)
class Job:
    """A started job, its folder, and its launcher."""

    kind: str
    folder: Path
    launcher: subprocess.Popen[bytes]

    def steps(self) -> list[int]:
        """How many steps each rank has made."""
        paths = (self.folder / f"steps.{rank}" for rank in (0, 1))
        return [len(path.read_text().splitlines()) if path.exists() else 0 for path in paths]

    def last_words(self) -> str:
        """The last line that it printed that names an error, else its last line in words."""
        lines = (self.folder / "output").read_text(errors="replace").splitlines()
        words = [line.strip() for line in lines if any(letter.isalpha() for letter in line)]
        errors = [line for line in words if "Error" in line]
        return (errors or words or ["it printed nothing"])[-1][:300]


def start_job(kind: str, folder: Path, output: IO[bytes]) -> Job:
    """The job under torchrun, in a session of its own."""
    os.mkfifo(folder / "pipe")
    environment = os.environ | {"KIND": kind, "RUN_DIR": str(folder), "OMP_NUM_THREADS": "1"}
    # Each job has its own port of NCCL's RAS; the first one would answer for all others.
    environment |= {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_RAS_ADDR": f"localhost:{_free_port()}"}
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--master-port", str(_free_port()), str(_JOB)]
    launcher = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )
    return Job(kind, folder, launcher)


def main() -> int:
    """Start the jobs, wait until they are where they hang, look at each, print; 0."""
    kinds = tuple(sys.argv[1].split(",")) if len(sys.argv) > 1 else KINDS
    with ExitStack() as stack:
        base = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        jobs: list[Job] = []
        stack.callback(end_jobs, jobs)
        for kind in kinds:
            (base / kind).mkdir()
            jobs.append(
                start_job(kind, base / kind, stack.enter_context((base / kind / "output").open("wb")))
            )
        until = monotonic() + _START_SECONDS
        while monotonic() < until and any(
            min(job.steps()) < FAULTY_STEP and job.launcher.poll() is None for job in jobs
        ):
            sleep(0.5)
        sleep(_SETTLE_SECONDS)
        looks = {job.kind: _start_look(job, stack) for job in jobs}
        for job in jobs:
            look, began = looks[job.kind]
            with suppress(subprocess.TimeoutExpired):
                look.wait(max(0.0, began + _LOOK_SECONDS - monotonic()))
            print(json.dumps(_row(job, look, monotonic() - began)), flush=True)
            look.kill()
            look.wait()
    return 0


def _start_look(job: Job, stack: ExitStack) -> tuple[subprocess.Popen[bytes], float]:
    streams = [stack.enter_context((job.folder / f"hang.{name}").open("wb")) for name in ("out", "err")]
    command = [sys.executable, "-m", "gpudiag", "hang", str(job.launcher.pid), "--json"]
    look = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=streams[0], stderr=streams[1])
    return look, monotonic()


def _row(job: Job, look: subprocess.Popen[bytes], seconds: float) -> dict[str, Any]:
    row: dict[str, Any] = {"kind": job.kind, "seconds": round(seconds, 2), "steps": job.steps()}
    if job.launcher.poll() is not None:
        return row | {"right": None, "answer": f"the job ended before it hung: {job.last_words()}"}
    if min(job.steps()) < FAULTY_STEP:
        return row | {"right": None, "answer": "the job did not come to its step in time"}
    if job.kind != HEALTHY and min(job.steps()) > FAULTY_STEP + 1:
        return row | {"right": None, "answer": "its fault did not hold it up here: both ranks went on"}
    if look.poll() is None:
        return row | {"right": False, "answer": f"no verdict within {_LOOK_SECONDS:.0f} s"}
    try:
        (verdict,) = json.loads((job.folder / "hang.out").read_text())["jobs"]
    except (ValueError, LookupError):
        words = (job.folder / "hang.err").read_text(errors="replace").strip()[-300:]
        return row | {"right": False, "answer": f"exit status {look.returncode}: {words}"}
    return row | {
        "right": is_right(job.kind, verdict),
        "answer": f"{verdict['outcome']}: {verdict['headline']}",
    }


def is_right(kind: str, verdict: dict[str, Any]) -> bool:
    """Whether the verdict is: nothing of a healthy job; a hang by rank 1, with its place, of others.

    Which of two ranks waits behind a kernel that does not end may be unknown; that it hangs is not.
    """
    outcome, headline = str(verdict["outcome"]), str(verdict["headline"])
    if kind == HEALTHY:
        return outcome == "pass"
    if kind == SPIN:
        return outcome == "fail" or (outcome == "error" and "hang" in headline)
    text = json.dumps([verdict["headline"], verdict["findings"], verdict["places"]])
    blamed = [finding["subject"].get("rank") for finding in verdict["findings"]]
    return (
        outcome == "fail"
        and (1 in blamed or "rank 1" in headline)
        and any(one in text for one in WORDS[kind])
    )


def end_jobs(jobs: list[Job]) -> None:
    """Kill the launchers and their ranks."""
    for job in jobs:
        with suppress(ProcessLookupError):
            os.killpg(job.launcher.pid, signal.SIGKILL)
        job.launcher.wait()
        _kill_ranks(job)


def _kill_ranks(job: Job) -> None:
    """Torchrun starts each rank in a session of its own."""
    mark = f"RUN_DIR={job.folder}\0".encode()
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if mark in Path(f"/proc/{name}/environ").read_bytes() and int(name) != os.getpid():
                os.kill(int(name), signal.SIGKILL)


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
