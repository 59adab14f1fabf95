"""Does `gpudiag train` find every fault that it can inject, and nothing in runs without one?

Injects each fault into a strategy on 2, 3, 4 and 8 gloo ranks, N times, each time with another seed, and
trains M times without a fault. Prints Markdown: how often the code and the rank were right, and how soon.

    python -m benchmarks.train_fault_matrix --results FILE [--clean 50] [--strategy ddp --strategy fsdp2]
                                            [--ranks 2 --ranks 8] [--page docs/training.md]

Further flags: matrix.py.
"""

import itertools
import os
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.matrix import append_run, matrix_parser, read_lines, show, spread, train, versions

LIMIT_SECONDS = 170.0
STEPS = 6
RANKS = (2, 3, 4, 8)
CLEAN = "none"
UNEVEN = "uneven"
BEGIN, END = "<!-- the matrix of faults begins -->", "<!-- the matrix of faults ends -->"

# fault -> the code of the first finding, and the rank that it must name
FAULTS: dict[str, tuple[str, int | None]] = {
    "nosync:3": ("train.not_averaged", None),
    "sumgrad": ("train.gradients_summed", None),
    "samedata": ("train.same_samples", None),
    "noset_epoch": ("train.order_repeats", None),
    "badinit": ("train.initial_parameters", None),
    "onebias": ("train.tensor_not_averaged", None),
    "nan:1@3": ("train.not_finite", 1),
    UNEVEN: ("train.uneven_steps", 1),
    "slow:1:50": ("train.straggler", 1),
    "kill:1@3": ("rank.died", 1),
    "stop:1@3": ("rank.stopped", 1),
    "oom:1": ("train.out_of_memory", 1),
}


@dataclass(frozen=True, slots=True)
class Run:
    """One line of the results: what was run, for the how-many-eth time, and what came of it."""

    strategy: str
    fault: str
    turn: int
    load: float  # of the last minute, before the run
    outcome: str
    codes: tuple[str, ...]
    right: bool
    seconds: float | None  # from the fault to the end of the run; None where it never happened
    ranks: int


def main() -> None:
    """Make the runs that are missing, and print what there is."""
    parser = matrix_parser(__doc__, times=20)
    parser.add_argument("--clean", type=int, default=50, help="how often each strategy runs without a fault")
    parser.add_argument("--strategy", action="append")
    parser.add_argument("--ranks", type=int, action="append", help="of a run; more than once for several")
    options = parser.parse_args()
    strategies = options.strategy or ["ddp", "fsdp2"]
    sizes = options.ranks or RANKS
    runs = [Run(**line) for line in read_lines(options.results) if line["ranks"] in sizes]
    done = {(run.strategy, run.ranks, run.fault, run.turn) for run in runs}
    planned = _plan(strategies, sizes, options.times, options.clean)
    for strategy, ranks, fault, turn in [one for one in planned if one not in done][: options.at_most]:
        run = _run(strategy, fault, turn, ranks)
        runs.append(run)
        append_run(options.results, run)
    show("\n".join(_describe(runs)), options.page, BEGIN, END)


def _plan(
    strategies: Sequence[str], sizes: Sequence[int], times: int, clean: int
) -> Iterator[tuple[str, int, str, int]]:
    """Every run, turn by turn, so that a matrix that was stopped has all its cells alike."""
    for turn in range(max(times, clean)):
        for strategy, ranks in itertools.product(strategies, sizes):
            if turn < times:
                yield from ((strategy, ranks, fault, turn) for fault in FAULTS)
            if turn < clean:
                yield strategy, ranks, CLEAN, turn


def _run(strategy: str, fault: str, turn: int, ranks: int) -> Run:
    load = os.getloadavg()[0]
    inject = () if fault == CLEAN else ("--inject", fault)
    flags = ("--steps", str(STEPS), "--nproc", str(ranks), "--strategy", strategy, "--seed", str(turn + 1))
    report = train(*flags, *inject, limit_seconds=LIMIT_SECONDS)
    (result,) = report["strategies"]
    injected = result["injected"]
    fired = injected[0]["at_seconds"] if injected and injected[0]["fired"] else None
    return Run(
        strategy=strategy,
        fault=fault,
        turn=turn,
        load=round(load, 1),
        outcome=report["outcome"],
        codes=tuple(finding["code"] for finding in report["findings"]),
        right=_is_right(report, fault, ranks),
        seconds=None if fired is None else round(result["seconds"] - fired, 2),
        ranks=ranks,
    )


def _is_right(report: Any, fault: str, ranks: int) -> bool:
    """Whether the first finding is of that fault and names its rank; of none, that nothing failed."""
    if fault == CLEAN:
        return report["outcome"] in ("pass", "warn")
    code, rank = FAULTS[fault]
    if fault == UNEVEN:
        rank = ranks - 1  # the last one has less
    first = next(iter(report["findings"]), None)
    return first is not None and first["code"] == code and rank in (None, first["subject"].get("rank"))


def _describe(runs: Sequence[Run]) -> Iterator[str]:
    columns = sorted({(run.strategy, run.ranks) for run in runs})
    yield f"{versions()}; {len(runs)} runs, one-minute load before a run"
    yield f"{spread(run.load for run in runs)}."
    yield ""
    yield "Found and named, and the seconds from the fault to the verdict (median, longest):"
    yield ""
    heads = [f"{strategy}, {ranks}" for strategy, ranks in columns]
    yield f"| fault | first finding | {' | '.join(heads)} ranks |"
    yield f"| --- | --- |{' --- |' * len(columns)}"
    for fault, (code, rank) in FAULTS.items():
        cells = [
            _cell([run for run in runs if (run.strategy, run.ranks, run.fault) == (*one, fault)])
            for one in columns
        ]
        who = "the last rank" if fault == UNEVEN else f"rank {rank}"
        named = code if rank is None else f"{code}, {who}"
        yield f"| `{fault}` | {named} | {' | '.join(cells)} |"
    yield ""
    for strategy in sorted({strategy for strategy, _ in columns}):
        clean = [run for run in runs if (run.strategy, run.fault) == (strategy, CLEAN)]
        warned = [code for run in clean for code in run.codes]
        sound = sum(run.right for run in clean)
        yield f"{strategy} without a fault: {sound} of {len(clean)} runs without a FAIL or ERROR,"
        yield f"and with {len(warned)} warnings{': ' if warned else ''}{', '.join(sorted(set(warned)))}."
    for run in runs:
        if not run.right:
            yield (
                f"- not right: {run.strategy} on {run.ranks}, {run.fault}, turn {run.turn}, load"
                f" {run.load}: {', '.join(run.codes)}"
            )


def _cell(runs: Sequence[Run]) -> str:
    found = f"{sum(run.right for run in runs)} of {len(runs)}"
    seconds = [run.seconds for run in runs if run.seconds is not None]
    return f"{found} ({statistics.median(seconds):.1f}, {max(seconds):.1f})" if seconds else found


if __name__ == "__main__":
    main()
