"""How long commands take from their start to their end, beside what people use instead; a JSON line for each.

    python -m tools.confirm_on_gpu.start_times

They run in turn, so that a busy moment hits all alike. A command that this Python or this machine lacks is
reported, with the reason.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from time import perf_counter

from benchmarks.list_command import BARE_SCRIPT

ROUNDS = 3
_LIMIT_SECONDS = 20.0
_GPUDIAG = (sys.executable, "-m", "gpudiag")
COMMANDS: dict[str, tuple[str, ...]] = {
    "gpudiag list --json": (*_GPUDIAG, "list", "--json"),
    "gpudiag": _GPUDIAG,
    "gpudiag preflight --level instant": (*_GPUDIAG, "preflight", "--level", "instant"),
    "nvitop -1": (sys.executable, "-m", "nvitop", "-1"),
    "gpustat --json": (sys.executable, "-m", "gpustat", "--json"),
    "nvidia-smi": ("nvidia-smi",),
    "bare pynvml script": (sys.executable, "-c", BARE_SCRIPT),
    "python -c pass": (sys.executable, "-c", "pass"),
}


def why_not_here(command: Sequence[str]) -> str:
    """Why the command cannot run here; empty where it can."""
    if command[0] != sys.executable:
        return "" if shutil.which(command[0]) else f"{command[0]} is not on PATH"
    if command[1] == "-m" and find_spec(command[2]) is None:
        return f"{command[2]} is not installed for {sys.executable}"
    return ""


def main() -> None:
    """Measure all in turn; print a line for each, and the line again whenever a round has made it better."""
    wall: dict[str, list[float]] = {name: [] for name in COMMANDS}
    used: dict[str, list[float]] = {name: [] for name in COMMANDS}
    ends: dict[str, int | str] = {}
    for name, command in COMMANDS.items():
        if reason := why_not_here(command):
            print(json.dumps({"command": name, "not_run": reason}), flush=True)
    for number in range(ROUNDS + 1):  # the first warms the file cache
        for name, command in COMMANDS.items():
            if why_not_here(command):
                continue
            before, began = _processor_seconds(), perf_counter()
            try:
                done = subprocess.run(
                    command,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    stdin=subprocess.DEVNULL,
                    env=os.environ | {"TERM": "dumb"},
                    timeout=_LIMIT_SECONDS,
                    check=False,
                )
                ends[name] = done.returncode
            except (OSError, subprocess.TimeoutExpired) as error:
                ends[name] = f"{type(error).__name__}"
            if number > 0:
                wall[name].append(perf_counter() - began)
                used[name].append(_processor_seconds() - before)
                row = {"command": name, "median_seconds": statistics.median(wall[name]), "rounds": number}
                row |= {"processor_seconds": statistics.median(used[name]), "ended": ends[name]}
                print(json.dumps(row), flush=True)


def _processor_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
