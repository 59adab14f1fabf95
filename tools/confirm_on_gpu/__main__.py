"""`make gpu`: confirm on a real GPU what only a GPU can confirm.

Exit status: 0 all that could run is as it should be, 1 something is not, 2 usage, 3 no GPU here, or no way to look.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tools.confirm_on_gpu.step import Step

OLDEST_PYTHON = (3, 10)


def main(arguments: Sequence[str]) -> int:
    """The exit status of one run."""
    if sys.version_info < OLDEST_PYTHON:
        print(f"gpudiag needs Python 3.10 or later; this is {sys.version.split()[0]}", file=sys.stderr)
        return 2
    from tools.confirm_on_gpu.plan import LIMIT_SECONDS, LOOK, STEPS

    parser = argparse.ArgumentParser(
        prog="python -m tools.confirm_on_gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--output", type=Path, metavar="FOLDER", help="a new folder [default: build/gpu-HOST-TIME]")
    add(
        "--limit", type=float, default=LIMIT_SECONDS, metavar="SECONDS", help="of the whole run [%(default)s]"
    )
    add("--only", metavar="STEP,...", help="run these steps, behind the look at the machine")
    add("--list", action="store_true", help="say what would be done, and do nothing")
    options = parser.parse_args(arguments)
    names = [step.name for step in STEPS]
    wanted = options.only.split(",") if options.only else names
    unknown = [name for name in wanted if name not in names]
    if unknown:
        parser.error(f"there is no step {', '.join(unknown)}; there are {', '.join(names)}")
    steps = [step for step in STEPS if step is LOOK or step.name in wanted]
    if options.list:
        print_plan(steps)
        return 0
    return watch(lambda: confirm(options.output or default_folder(), options.limit, steps))


def watch(call: Callable[[], int]) -> int:
    """What `call` returns; a signal that ends this process ends the step that runs, too."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    return call()


def _end(number: int, frame: object) -> None:
    sys.exit(128 + number)


def confirm(folder: Path, limit_seconds: float, steps: Sequence[Step]) -> int:
    """Look at the machine by the first step, run the others, and say where the report lies."""
    from gpudiag.model.finding import Outcome
    from tools.confirm_on_gpu.machine import missing_modules, traces_of_a_gpu
    from tools.confirm_on_gpu.run import Run

    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        print(f"{folder} is there already; name a new folder with --output", file=sys.stderr)
        return 2
    run = Run(folder.resolve(), limit_seconds)
    try:
        look = run.take(steps[0])
        traces = traces_of_a_gpu()
        if not run.snapshot.get("devices") and not (look.outcome is Outcome.FAIL and traces):
            shutil.rmtree(folder)
            return explain_no_gpu(look.sentence, traces, steps)
        print(run.line_of(look), flush=True)
        for line in missing_modules():
            print(f"this Python has no {line}", flush=True)
        run.take_all(steps[1:])
    except KeyboardInterrupt:
        print(f"\ninterrupted; what was seen so far: {folder / 'report.md'}", file=sys.stderr)
        return 130
    report = run.report(finished=True)
    print(f"{report.outcome.value.upper()} in {report.seconds:.0f} s: {folder / 'report.md'}, report.json")
    return {Outcome.FAIL: 1, Outcome.ERROR: 3}.get(report.outcome, 0)


def explain_no_gpu(sentence: str, traces: Sequence[str], steps: Sequence[Step]) -> int:
    """Say that there is no GPU to confirm anything on, and what would be done with one; 3."""
    print(f"No GPU to confirm anything on: {sentence}")
    for trace in traces:
        print(f"  and yet there is {trace}: the driver does not show it")
    print("With one, this would be done, each step in a process with its own deadline:")
    print_plan(steps)
    return 3


def print_plan(steps: Sequence[Step]) -> None:
    """Print what each step confirms, its limit and what it needs."""
    for step in steps:
        needs = f"; needs {', '.join(need.value for need in step.needs)}" if step.needs else ""
        print(f"  {step.name}: {step.confirms} (at most {step.deadline_seconds:.0f} s{needs})")


def default_folder() -> Path:
    """A folder of this machine and moment."""
    return Path("build") / f"gpu-{socket.gethostname()}-{time.strftime('%Y%m%d-%H%M%S')}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
