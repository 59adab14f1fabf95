"""Does gpudiag leave a healthy run alone, beside a loaded processor, through pauses and short outages?

Runs `gpudiag nccl-test` without a fault over launchers, numbers of ranks, operations and busy loops beside
them; then with a pause or an outage that ends by itself. Prints Markdown: how many runs ended in PASS, WARN,
FAIL or ERROR. An outage takes down the loopback interface of a network namespace of the run's own: root.

    python -m benchmarks.no_fault_matrix --results FILE [--runs 300] [--disturbed 60] [--loops 0 4 16]
                                         [--page docs/detection.md]

Further flags: matrix.py.
"""

import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version

from benchmarks.matrix import PAGE_WIDTH, append_run, machine, matrix_parser, read_lines, show_section, spread
from benchmarks.outside import Program, busy_loops, launch
from gpudiag.model.operation import OPERATIONS

HEADING = "## Runs without a fault"
_LIMIT_SECONDS = 400.0
_LAUNCHERS = ("spawn", "torchrun")
_RANKS = range(2, 9)
_SHORT = ("--min-bytes", "8", "--max-bytes", "4K", "--step-factor", "8", "--iterations", "20")
_LONG = ("--min-bytes", "1K", "--max-bytes", "4K", "--iterations", "400", "--verify", "last")
_DISTURBANCES = ("rank paused", "all ranks paused", "everything paused", "outage")
_OUTCOMES = ("pass", "warn", "fail", "error")


@dataclass(frozen=True, slots=True)
class Cell:
    """One healthy run: how it is started, and what happens beside it or to it."""

    launcher: str
    ranks: int
    op: str
    loops: int
    disturbance: str = ""
    seconds: float = 0.0  # how long the disturbance lasts


@dataclass(frozen=True, slots=True)
class Run:
    """One line of the results."""

    cell: Cell
    load: float
    outcome: str
    reported: str


def plan(runs: int, disturbed: int, loops: list[int]) -> list[Cell]:
    """So many healthy cells and so many disturbed ones, the same every time."""
    source = random.Random(10)  # noqa: S311 - a plan, not a secret
    healthy = [
        Cell(*one)
        for one in itertools.product(_LAUNCHERS, _RANKS, OPERATIONS, loops)
        if one[1] < 5 or one[0] == "spawn"
    ]
    source.shuffle(healthy)
    pauses = [
        Cell(launcher, 4, "all_reduce", 0, disturbance, seconds)
        for seconds in (0.5, 1.0, 1.5)
        for launcher in _LAUNCHERS
        for disturbance in _DISTURBANCES
    ]
    chosen = list(itertools.islice(itertools.cycle(healthy), runs))
    return [
        *sorted(chosen, key=lambda cell: cell.loops),
        *itertools.islice(itertools.cycle(pauses), disturbed),
    ]


def main() -> None:
    """Run what is missing of the plan, and print what there is."""
    parser = matrix_parser(__doc__, at_once=True)
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--disturbed", type=int, default=60)
    parser.add_argument("--loops", type=int, nargs="+", default=[0, 4, 16])
    parser.add_argument("--only", choices=("healthy", "disturbed"))
    options = parser.parse_args()
    lines = read_lines(options.results)
    runs = [Run(Cell(**one["cell"]), one["load"], one["outcome"], one["reported"]) for one in lines]
    left = Counter(plan(options.runs, options.disturbed, options.loops)) - Counter(run.cell for run in runs)
    todo = [
        cell
        for cell in left.elements()
        if options.only in (None, "disturbed" if cell.disturbance else "healthy")
    ][: options.at_most]
    lock = threading.Lock()

    def run_one(cell: Cell) -> None:
        try:
            run = observe(cell)
        except TimeoutError as error:  # the machine is too slow now: it is tried again the next time
            print(f"{cell}: {error}", file=sys.stderr)
            return
        with lock:
            runs.append(run)
            append_run(options.results, run)
            if run.outcome not in ("pass", "warn"):
                print(f"{run.outcome}: {cell}: {run.reported}", file=sys.stderr)

    for loops, cells in itertools.groupby(
        sorted(todo, key=lambda cell: cell.loops), key=lambda cell: cell.loops
    ):
        with busy_loops(loops), ThreadPoolExecutor(options.jobs) as pool:
            for future in [pool.submit(run_one, cell) for cell in cells]:
                future.result()
    show_section(render(runs), options.page, HEADING)


def observe(cell: Cell) -> Run:
    """One run, and what it ended in."""
    load = os.getloadavg()[0]
    sizes: tuple[str, ...] = _LONG if cell.disturbance else _SHORT
    command = launch(
        cell.launcher, cell.ranks, "nccl-test", "--backend", "gloo", "--op", cell.op, *sizes, "--json"
    )
    if cell.disturbance == "outage":
        command = ["unshare", "--net", "sh", "-c", 'ip link set lo up; exec "$@"', "sh", *command]
    program = Program(command)
    process = program.start()
    try:
        if cell.disturbance:
            _disturb(cell, program)
        output, errors = process.communicate(timeout=_LIMIT_SECONDS)
    except subprocess.TimeoutExpired as error:
        return Run(cell, load, "error", f"no end: {error}")
    finally:
        program.kill()
    try:
        report = json.loads(output)
    except ValueError:
        return Run(cell, load, "error", f"exit {process.returncode}: {errors.strip()[-300:]}")
    reported = "; ".join(f"{finding['code']}: {finding['message']}" for finding in report["findings"])
    return Run(cell, load, report["outcome"], reported[:300])


def _disturb(cell: Cell, program: Program) -> None:
    ranks = program.await_ranks(cell.ranks)
    time.sleep(0.7 + time.time() % 1.0)
    if cell.disturbance == "outage":
        with _in_network_of(next(iter(ranks.values()))) as run:
            run("down")
            time.sleep(cell.seconds)
            run("up")
        return
    victims = {
        "rank paused": [ranks[cell.ranks // 2]],
        "all ranks paused": list(ranks.values()),
        "everything paused": program.pids(),
    }[cell.disturbance]
    for number, wait in ((signal.SIGSTOP, cell.seconds), (signal.SIGCONT, 0.0)):
        random.shuffle(victims)
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        time.sleep(wait)


@contextlib.contextmanager
def _in_network_of(pid: int) -> Iterator["_SetLoopback"]:
    yield _SetLoopback(pid)


@dataclass(frozen=True, slots=True)
class _SetLoopback:
    """Takes the loopback interface of a process's network namespace up or down."""

    pid: int

    def __call__(self, state: str) -> None:
        command = ["nsenter", f"--net=/proc/{self.pid}/ns/net", "ip", "link", "set", "lo", state]
        subprocess.run(command, check=True)


def render(runs: list[Run]) -> str:
    """A row for each number of loops and each disturbance, and what was reported where a run failed."""
    head = (
        f"`python -m benchmarks.no_fault_matrix`: {machine()}, torch {version('torch')}; load"
        f" {spread(run.load for run in runs)}. `gpudiag nccl-test` on 2 to 8 gloo ranks (torchrun:"
        " 2 to 4), all operations; then on 4 ranks that are stopped, or whose network is taken away,"
        " for 0.5 to 1.5 s. Nothing is wrong in any of them.",
    )
    lines = [textwrap.fill(paragraph, PAGE_WIDTH) for paragraph in head]
    lines += ["", f"| beside or meanwhile | runs | {' | '.join(name.upper() for name in _OUTCOMES)} |"]
    lines += ["| --- " * (len(_OUTCOMES) + 2) + "|"]
    rows = [
        (f"{loops} busy loops", [run for run in runs if not run.cell.disturbance and run.cell.loops == loops])
        for loops in sorted({run.cell.loops for run in runs})
    ]
    rows += [(name, [run for run in runs if run.cell.disturbance == name]) for name in _DISTURBANCES]
    for name, chosen in rows:
        counts = Counter(run.outcome for run in chosen)
        if chosen:
            lines.append(f"| {name} | {len(chosen)} | {' | '.join(str(counts[one]) for one in _OUTCOMES)} |")
    failed = [run for run in runs if run.outcome in ("fail", "error")]
    lines += ["", f"{len(failed)} of {len(runs)} runs ended in FAIL or ERROR."]
    for run in failed:
        cell = run.cell
        what = (
            f"{cell.launcher}, {cell.ranks} ranks, {cell.op},"
            f" {cell.disturbance or f'{cell.loops} loops'}: {run.reported}"
        )
        lines += textwrap.wrap(what, PAGE_WIDTH, initial_indent="- ", subsequent_indent="  ")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
