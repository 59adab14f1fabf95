"""Every command under every limit: `python -m benchmarks.limits_matrix [WORD...]` chooses some.

A shortage of gpudiag's own must end with exit status 3 and a sentence, or change nothing (0, or the 2 that
the command has without a limit); never 1, which a gate takes for a fault of the machine, never 70 and never a
traceback. `tests/cli/test_limits.py` walks a slice of it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from gpudiag.simulate.loader import load_scenario
from gpudiag.simulate.session import open_session

LIMITED = Path(__file__).parent / "limited.py"
_SECONDS = 60
_SERVED_SECONDS = 4.0

COMMANDS: dict[str, tuple[str, ...]] = {
    "bare": (),
    "list": ("list",),
    "list-json": ("list", "--json"),
    "list-all": ("list", "--sources", "all"),
    "instant": ("preflight", "--level", "instant"),
    "instant-only": ("preflight", "--level", "instant", "--only", "gpu.lost"),
    "quick": ("preflight", "--level", "quick"),
    "nccl-test": ("nccl-test", "--backend", "gloo", "--nproc", "2", "--max-bytes", "1K"),
    "bandwidth": ("bandwidth", "--test", "memory_copy"),
    "train": ("train", "--backend", "gloo", "--strategy", "ddp", "--nproc", "2", "--steps", "2"),
    "run": ("run", "--", "true"),
    "merge": ("merge", "report.json"),
    "history": ("history",),
    "explain": ("explain", "xid", "79"),
    "explain-log": ("explain", "job.log"),
    "lint": ("lint", "script.py"),
    "hang": ("hang",),
    "serve": ("serve", "--port", "0"),
    "doctor": ("doctor",),
    "deploy": ("deploy", "prometheus"),
    "simulate": ("simulate", "h100x8", "--", "gpudiag", "list"),
    "help": ("--help",),
}
_ON_PROCESSORS = ("nccl-test", "bandwidth", "train")  # their ranks reach no simulated GPU
LIMITS = tuple(
    """
    none processes processes=3 processes=6 processes=12 threads files=12 files=24 memory=60000
    memory=100000 memory=150000 memory=250000 memory=400000 memory=1000000 memory=2500000 proc folders
    """.split()
)


def run_limited(
    limit: str, command: Sequence[str], environment: dict[str, str], folder: Path
) -> tuple[int, str, str]:
    """The exit status, output and errors of one command under one limit; a service is stopped."""
    gpudiag = [sys.executable, "-m", "gpudiag", *command]
    argv = gpudiag if limit == "none" else [sys.executable, str(LIMITED), limit, "--", *gpudiag]
    child = subprocess.Popen(
        argv,
        env=environment,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, errors = child.communicate(timeout=_SERVED_SECONDS if "serve" in command else _SECONDS)
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGINT)
        try:
            out, errors = child.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            out, errors = child.communicate()
            return -9, out, errors
        return 0 if "serve" in command and child.returncode in (0, 130) else child.returncode, out, errors
    return child.returncode, out, errors


def what_is_wrong(status: int, errors: str, allowed: Sequence[int]) -> str:
    """What a command did that it must not do under a limit; empty where it did well."""
    if "Traceback" in errors:
        return "a traceback"
    if status not in (*allowed, 3):
        return f"exit status {status}"
    return ""


def write_files(folder: Path) -> None:
    """Write what the commands read."""
    (folder / "job.log").write_text("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n")
    (folder / "script.py").write_text("import torch\nprint(torch.zeros(1))\n")


def main() -> None:
    """Print the status of each command under each limit, and what was wrong."""
    words = sys.argv[1:]
    commands = [name for name in COMMANDS if name in words] or list(COMMANDS)
    limits = [limit for limit in LIMITS if limit in words] or list(LIMITS)
    wrong = 0
    with (
        tempfile.TemporaryDirectory() as name,
        open_session(load_scenario("h100x8")) as session,
        open_session(load_scenario("none")) as bare,
    ):
        folder = Path(name)
        folder.chmod(0o777)
        write_files(folder)
        environment = {**session.environment, "GPUDIAG_STATE_DIR": str(folder / "state")}
        environment["PYTHONPATH"] = str(Path(__file__).parents[1])
        report = run_limited("none", ("preflight", "--level", "instant", "--json"), environment, folder)[1]
        (folder / "report.json").write_text(report)
        without_gpu = {**environment, **bare.environment}
        for command in commands:
            there = without_gpu if command in _ON_PROCESSORS else environment
            allowed = {0, 2 if command != "serve" else 0}
            usual = run_limited("none", COMMANDS[command], there, folder)[0]
            for limit in limits:
                status, out, errors = run_limited(limit, COMMANDS[command], there, folder)
                fault = what_is_wrong(status, errors, (*allowed, usual))
                wrong += bool(fault)
                printed = (errors.strip() or out.strip()).splitlines() or [""]
                print(
                    f"{command:14} {limit:16} {status:4}  {fault or 'as it must be':14}"
                    f" {printed[0 if 'gpudiag:' in printed[0] else -1][:150]}",
                    flush=True,
                )
    print(f"{wrong} wrong")


if __name__ == "__main__":
    main()
