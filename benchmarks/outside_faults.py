r"""Is a fault named right that nobody injected: a signal, a control group, a disk, a bad script?

Plants each fault from outside of gpudiag into running ranks, under its own spawn and under torchrun, N
times, and prints Markdown: in each cell how often the first finding had the right rank and the right
kind, and the seconds from the fault to the end of the run. Control groups and namespaces need root.

    python -m benchmarks.outside_faults --results FILE [--launcher spawn] [--fault lock] \
        [--page docs/detection.md]

Further flags: matrix.py.
"""

import os
import statistics
import sys
import tempfile
import textwrap
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from benchmarks.matrix import PAGE_WIDTH, append_run, machine, matrix_parser, read_lines, show_section, spread
from benchmarks.outside_cell import EXPECTED, LAUNCHERS, RANKS, Cell, Seen, observe

HEADING = "## Faults from outside"


@dataclass(frozen=True, slots=True)
class Run:
    """One line of the results."""

    cell: Cell
    turn: int
    load: float  # of the last minute, before the run
    seen: Seen


def main() -> None:
    """Run what is missing of the matrix, and print what there is."""
    parser = matrix_parser(__doc__, times=10, at_once=True)
    parser.add_argument("--launcher", action="append", choices=LAUNCHERS)
    parser.add_argument("--fault", action="append", choices=list(EXPECTED))
    options = parser.parse_args()
    lines = read_lines(options.results)
    runs = [Run(Cell(**one["cell"]), one["turn"], one["load"], Seen(**one["seen"])) for one in lines]
    done = {(run.cell, run.turn) for run in runs}
    cells = [
        Cell(launcher, fault)
        for fault in options.fault or EXPECTED
        for launcher in options.launcher or LAUNCHERS
    ]
    missing = [(cell, turn) for turn in range(options.times) for cell in cells if (cell, turn) not in done]
    lock = threading.Lock()

    def run_one(cell: Cell, turn: int) -> None:
        load = os.getloadavg()[0]
        with tempfile.TemporaryDirectory() as folder:
            try:
                run = Run(cell, turn, load, observe(cell, turn % RANKS, Path(folder)))
            except TimeoutError as error:  # the machine is too slow now: it is tried again the next time
                print(f"{cell.launcher} {cell.fault}: {error}", file=sys.stderr)
                return
        with lock:
            runs.append(run)
            append_run(options.results, run)
            if not run.seen.right or run.seen.left:
                print(
                    f"{cell.launcher} {cell.fault}: {run.seen.answer}, {run.seen.left} left", file=sys.stderr
                )

    with ThreadPoolExecutor(options.jobs) as pool:
        for future in [pool.submit(run_one, *one) for one in missing[: options.at_most]]:
            future.result()
    show_section(render(runs), options.page, HEADING)


def render(runs: list[Run]) -> str:
    """The table, what all runs come to, and what was reported where it was wrong."""
    head = (
        f"`python -m benchmarks.outside_faults`: {machine()}, torch {version('torch')}; load"
        f" {spread(run.load for run in runs)}. {RANKS} gloo ranks of `gpudiag nccl-test`, and of"
        " `gpudiag train --script --hang-after 1` from `early exit` on; the rank by turns, the moment at"
        " random. Nothing is injected: signals, control groups (v1), mounts and scripts do it."
        " A rank that spins counts as working, and is given up after 30 times `--hang-after`.",
        "Cell: runs whose first finding had the right rank and the right kind, of all runs; median and"
        " longest seconds from the fault, for scripts from the start, to the end of the run.",
    )
    lines = [textwrap.fill(paragraph, PAGE_WIDTH) for paragraph in head]
    lines += ["", f"| fault | {' | '.join(LAUNCHERS)} |", "| --- " * (len(LAUNCHERS) + 1) + "|"]
    for fault in EXPECTED:
        cells = [[run.seen for run in runs if run.cell == Cell(launcher, fault)] for launcher in LAUNCHERS]
        if any(cells):
            lines.append(f"| {fault} | {' | '.join(map(_render_cell, cells))} |")
    right, left = sum(run.seen.right for run in runs), sum(run.seen.left for run in runs)
    lines += ["", f"{right}/{len(runs)} right. Left behind: {left} processes."]
    wrong = list(dict.fromkeys(_shorten(run) for run in runs if not run.seen.right))
    if wrong:
        lines += ["", "Wrong:", "", *(line for words in wrong for line in _as_item(words))]
    return "\n".join(lines)


def _shorten(run: Run) -> str:
    answer = run.seen.answer.replace(os.fspath(Path(__file__).parents[1]), "").replace("|", "/")
    return f"{run.cell.fault}, {run.cell.launcher}: {answer}"


def _as_item(words: str) -> list[str]:
    return textwrap.wrap(words, PAGE_WIDTH, initial_indent="- ", subsequent_indent="  ")


def _render_cell(seen: list[Seen]) -> str:
    if not seen:
        return ""
    seconds = [one.seconds for one in seen if one.seconds is not None]
    times = f"{statistics.median(seconds):.1f} ({max(seconds):.1f})" if seconds else "-"
    return f"{_share(seen)}, {times}"


def _share(seen: Iterable[Seen]) -> str:
    rights = [one.right for one in seen]
    return f"{sum(rights)}/{len(rights)}"


if __name__ == "__main__":
    main()
