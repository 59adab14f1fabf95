"""`make gpu`: confirm on a real GPU what only a GPU can confirm.

Exit status: 0 all that could run is as it should be, 1 something is not, 2 usage, 3 no GPU here, or no way to
look.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
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
    from tools.confirm_on_gpu.plan import LIMIT_SECONDS, STEPS, chosen_steps

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
    add(
        "--wheels",
        type=Path,
        metavar="FOLDER",
        help="install its wheels for this run: for a machine without a network (docs/gpu.md)",
    )
    add(
        "--only",
        metavar="STEP,...",
        help="run these steps, behind the look at the machine and what else they need",
    )
    add("--list", action="store_true", help="list what would be done, and do nothing")
    options = parser.parse_args(arguments)
    names = [step.name for step in STEPS]
    wanted = options.only.split(",") if options.only else names
    unknown = [name for name in wanted if name not in names]
    if unknown:
        parser.error(f"there is no step {', '.join(unknown)}; there are {', '.join(names)}")
    steps = chosen_steps(wanted)
    if options.list:
        print_plan(steps)
        return 0
    return watch(
        lambda: confirm(options.output or default_folder(), options.limit, steps, wheels=options.wheels)
    )


def watch(call: Callable[[], int]) -> int:
    """What `call` returns; a signal that ends this process ends the step that runs, too."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    return call()


def _end(number: int, frame: object) -> None:
    sys.exit(128 + number)


def confirm(folder: Path, limit_seconds: float, steps: Sequence[Step], *, wheels: Path | None = None) -> int:
    """Look at the machine by the first step, run the others, and print where the report lies."""
    from tools.confirm_on_gpu.wheels import WheelsError, installed_wheels

    try:
        with ExitStack() as stack:
            library = None
            if wheels is not None:
                library = stack.enter_context(installed_wheels(wheels))
            return _confirm(folder, limit_seconds, steps, library)
    except WheelsError as error:
        print(error, file=sys.stderr)
        return 2


def _confirm(folder: Path, limit_seconds: float, steps: Sequence[Step], nccl_library: Path | None) -> int:
    from gpudiag.model.finding import Outcome
    from tools.confirm_on_gpu.machine import missing_modules, traces_of_a_gpu
    from tools.confirm_on_gpu.markdown import confirmed_row
    from tools.confirm_on_gpu.run import Run

    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        print(f"{folder} is there already; name a new folder with --output", file=sys.stderr)
        return 2
    run = Run(folder.resolve(), limit_seconds, nccl_library)
    try:
        look = run.take(steps[0])
        traces = traces_of_a_gpu()
        if not run.snapshot.get("devices") and not (look.outcome is Outcome.FAIL and traces):
            shutil.rmtree(folder)
            return explain_no_gpu(look.sentence, traces, steps)
        print(plan_line(steps, limit_seconds))
        print(run.line_of(look), flush=True)
        for line in missing_modules():
            print(f"this Python has no {line}", flush=True)
        run.take_all(steps[1:])
    except KeyboardInterrupt:
        print(f"\ninterrupted; what was seen so far: {folder / 'report.md'}", file=sys.stderr)
        return 130
    report = run.report(finished=True)
    print(confirmed_row(report))
    print(shared_line(folder))
    print(f"{report.outcome.value.upper()} in {report.seconds:.0f} s: {folder / 'report.md'}, report.json")
    return {Outcome.FAIL: 1, Outcome.ERROR: 3}.get(report.outcome, 0)


def shared_line(folder: Path) -> str:
    """Write the anonymous form, and return what to do with it, or why there is none."""
    from gpudiag.errors import UsageError
    from tools.confirm_on_gpu.anonymous import write_anonymous

    try:
        return (
            f"to share, without names of the machine and its users: {write_anonymous(folder)} (docs/gpu.md)"
        )
    except (OSError, ValueError, UsageError) as error:
        return f"no anonymous form: {error}"


def explain_no_gpu(sentence: str, traces: Sequence[str], steps: Sequence[Step]) -> int:
    """Print that there is no GPU to confirm anything on, and what would be done with one; 3."""
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
        took = f"about {step.seconds:.0f} s, at most {step.deadline_seconds:.0f} s"
        beside = f", beside {step.beside}" if step.beside else ""
        print(f"  {step.name}: {step.confirms} ({took}{beside}{needs})")


def plan_line(steps: Sequence[Step], limit_seconds: float) -> str:
    """How many seconds each step takes on one GPU; those that may not be needed in brackets."""
    from tools.confirm_on_gpu.step import Need

    words = []
    for step in steps:
        unsure = {Need.NO_SHARING, Need.TWO_GPUS} & set(step.needs)
        word = f"{step.name} {step.seconds:.0f}" + (f" beside {step.beside}" if step.beside else "")
        words.append(f"({word})" if unsure else word)
    sure = [
        step for step in steps if not {Need.NO_SHARING, Need.TWO_GPUS} & set(step.needs) and not step.beside
    ]
    total = sum(step.seconds for step in sure)
    return f"seconds planned: {', '.join(words)}; {total:.0f} of {limit_seconds:.0f} in all"


def default_folder() -> Path:
    """A folder of this machine and moment."""
    return Path("build") / f"gpu-{socket.gethostname()}-{time.strftime('%Y%m%d-%H%M%S')}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
