"""Does gpudiag find every fault at every stage, whom does it name, and how soon?

Injects each fault at each stage into `gpudiag nccl-test` on gloo ranks, N times, under its own spawn,
torchrun, srun (in a cluster of yours), Open MPI's mpirun and MPICH's mpiexec, and prints Markdown: in
each cell how often rank, kind and stage were right, and the seconds from the fault to the verdict.

    python -m benchmarks.fault_matrix --results FILE [--ranks 4] [--launcher spawn] [--page docs/detection.md]

Further flags: matrix.py.
"""

import os
import platform
import statistics
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import version

from benchmarks.fault_cell import FAULTS, SPAWN, Cell, Observation, all_cells, observe
from benchmarks.launchers import LAUNCHERS
from benchmarks.matrix import PAGE_WIDTH, append_run, machine, matrix_parser, read_lines, show_section, spread
from gpudiag.ranks.stages import STAGES

HEADING = "## Faults on ranks"


@dataclass(frozen=True, slots=True)
class Run:
    """One line of the results: which cell, its how-many-eth run, on how loaded a machine, what came of it."""

    cell: Cell
    turn: int
    load: float  # of the last minute, before the run
    observation: Observation


def main() -> None:
    """Run what is missing of the matrix, and print what there is."""
    parser = matrix_parser(__doc__, times=20)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--launcher", action="append", choices=(SPAWN, *LAUNCHERS))
    options = parser.parse_args()
    lines = read_lines(options.results)
    runs = [
        Run(Cell(**one["cell"]), one["turn"], one["load"], Observation(**one["observation"])) for one in lines
    ]
    done = {(run.cell, run.turn) for run in runs}
    cells = list(all_cells(options.launcher or (SPAWN, *LAUNCHERS)))
    missing = [(cell, turn) for turn in range(options.times) for cell in cells if (cell, turn) not in done]
    for cell, turn in missing[: options.at_most]:
        run = Run(cell, turn, os.getloadavg()[0], observe(cell, turn % options.ranks, options.ranks))
        runs.append(run)
        append_run(options.results, run)
        if not run.observation.right:
            print(f"{cell.launcher} {cell.fault}@{cell.stage}: {run.observation.answer}", file=sys.stderr)
    show_section(render(runs, options.ranks), options.page, HEADING)


def render(runs: list[Run], ranks: int) -> str:
    """The table of each launcher, and what all runs come to."""
    lines = [
        textwrap.fill(paragraph, PAGE_WIDTH)
        for paragraph in (
            f"`python -m benchmarks.fault_matrix`: {machine()}, Linux"
            f" {'.'.join(platform.release().split('.')[:2])}, Python"
            f" {platform.python_version()}, torch {version('torch')}; load"
            f" {spread(run.load for run in runs)}. Each cell is `gpudiag nccl-test --inject` on"
            f" {ranks} gloo ranks, the rank by turns; operations take far less than 0.1 s.",
            "Cell: runs in which kind, rank, stage and exit status were right, of all"
            " runs; median and longest seconds from the fault to the verdict."
            " A mismatch has no cell where no collective runs.",
        )
    ]
    for launcher in dict.fromkeys(run.cell.launcher for run in runs):
        lines += ["", f"| {launcher} | {' | '.join(STAGES)} |", "| --- " * (len(STAGES) + 1) + "|"]
        for fault in FAULTS:
            cells = (_select(runs, Cell(launcher, fault, stage)) for stage in STAGES)
            lines.append(f"| {fault} | {' | '.join(map(_render_cell, cells))} |")
    observed = [run.observation for run in runs]
    lines += ["", f"{_render_share(observed)} right; fault to verdict: {_render_seconds(observed)} s."]
    processes = sum(observation.processes_left for observation in observed)
    ports = sum(observation.ports_left for observation in observed)
    lines[-1] += f" Left behind: {processes} processes, {ports} listening ports."
    return "\n".join(lines)


def _select(runs: Iterable[Run], cell: Cell) -> list[Observation]:
    return [run.observation for run in runs if run.cell == cell]


def _render_cell(observed: list[Observation]) -> str:
    return f"{_render_share(observed)}, {_render_seconds(observed)}" if observed else ""


def _render_share(observed: list[Observation]) -> str:
    return f"{sum(observation.right for observation in observed)}/{len(observed)}"


def _render_seconds(observed: list[Observation]) -> str:
    seconds = list(_known_seconds(observed))
    return f"{statistics.median(seconds):.2f} ({max(seconds):.2f})" if seconds else "-"


def _known_seconds(observed: Iterable[Observation]) -> Iterator[float]:
    return (observation.seconds for observation in observed if observation.seconds is not None)


if __name__ == "__main__":
    main()
