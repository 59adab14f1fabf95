"""`python -m tools.walk_gpu_paths`: every step on the stand-in for CUDA, and whether it ended as it should.

    python -m tools.walk_gpu_paths --logs FOLDER [--only WORDS] [--gpus 1,2] [--resume]

It prints a line per command: whether it ended as it should, its exit status, and what it ended with. It
proves calls, flow and words, never speed (tests/cuda_stand_in/README.md). The exit status is 0 where all
ended as they should. `--resume` leaves out the steps that did so before, by the file `passed` of the folder.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.cuda_stand_in.machine import command_on, open_machine
from tests.cuda_stand_in.settings import NOTICE
from tools.walk_gpu_paths.steps import Step, all_steps

_COUNTS = (1, 2, 4, 8)
_LIMIT_SECONDS = 900


def run_step(step: Step, logs: Path) -> bool:
    """Whether the step ended as it should; its output is in the folder."""
    started = time.monotonic()
    log = logs / f"{step.name.replace(' ', '-')}.log"
    with open_machine(step.scenario, step.variables) as environment, log.open("w") as file:
        command = command_on(environment, [sys.executable, "-m", "gpudiag", *step.command])
        try:
            status = subprocess.run(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=_LIMIT_SECONDS,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            status = -1
    printed = " ".join(log.read_text().split())
    named = not step.words or any(words in printed for words in step.words.split("|"))
    right = status == step.status and named and NOTICE in printed
    result = "ok" if right else "DIFFERS"
    seconds = time.monotonic() - started
    wanted = "" if status == step.status else f" (wanted {step.status})"
    missing = "" if named else f", and never printed {step.words}"
    print(
        f"{result:8} {step.name:34} status {status}{wanted}{missing} {seconds:6.0f} s  {printed[:60]}",
        flush=True,
    )
    return right


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 where every step ended as it should."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--logs", type=Path, default=Path("build/gpu_paths"), help="folder for the outputs")
    parser.add_argument("--only", default="", help="steps whose name has these words")
    parser.add_argument("--gpus", default=",".join(map(str, _COUNTS)), help="numbers of GPUs")
    parser.add_argument("--resume", action="store_true", help="leave out the steps that passed before")
    options = parser.parse_args(arguments)
    options.logs.mkdir(parents=True, exist_ok=True)
    ledger = options.logs / "passed"
    before = ledger.read_text().splitlines() if options.resume and ledger.exists() else []
    ledger.write_text("".join(f"{name}\n" for name in before))
    steps = all_steps([int(part) for part in options.gpus.split(",")])
    chosen = [step for step in steps if options.only in step.name and step.name not in before]
    print(NOTICE)
    wrong = []
    for step in chosen:
        if run_step(step, options.logs):
            with ledger.open("a") as file:
                file.write(f"{step.name}\n")
        else:
            wrong.append(step.name)
    print(f"{len(chosen) - len(wrong)} of {len(chosen)} as they should be", *wrong, sep="\n  ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
