"""Does `gpudiag train` find nothing in training that is right, on any number of ranks?

Trains under each strategy on 1, 2, 3, 4, 5 and 8 gloo ranks, with every workload, dtype and optimizer, each
run with another seed. Prints Markdown: the runs without a FAIL or ERROR, what the others found, and the
largest error of the steps after a checkpoint, and of a gradient as a share of its limit.

    python -m benchmarks.train_clean_matrix --results FILE [--quick] [--python PATH] [--strategy ddp]
                                            [--ranks 3] [--page docs/training.md]

`--quick` takes each strategy on each number of ranks once, with workloads, dtypes and optimizers in turn.
`--python` is the interpreter that has DeepSpeed, Horovod and Accelerate; a strategy that is not installed is
counted apart.

Further flags: matrix.py.
"""

import itertools
import os
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.matrix import append_run, matrix_parser, read_lines, show, spread, train, versions

LIMIT_SECONDS = 600.0
STEPS = 6
RANKS = (1, 2, 3, 4, 5, 8)
STRATEGIES = ("ddp", "fsdp2", "zero0", "zero1", "zero2", "zero3", "horovod", "accelerate")
WORKLOADS = ("regression", "classification", "transformer", "convolution")
DTYPES = ("float32", "bfloat16", "float16")
OPTIMIZERS = ("sgd", "adam")
SOUND = ("pass", "warn")
SKIPPED = "skip"
BEGIN, END = "<!-- the clean matrix begins -->", "<!-- the clean matrix ends -->"


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """What one run trains."""

    ranks: int
    strategy: str
    workload: str
    dtype: str
    optimizer: str
    seed: int


@dataclass(frozen=True, slots=True)
class Run:
    """One line of the results: a cell, and what came of it."""

    cell: Cell
    load: float  # of the last minute, before the run
    outcome: str
    codes: tuple[str, ...]
    message: str  # of the first finding
    checkpoint: bool | None  # None where none was tried
    checkpoint_error: float | None
    # Of the limit that the largest error of a gradient came to, first step or last.
    gradient_share: float | None
    seconds: float


def main() -> None:
    """Make the runs that are missing, and print what there is."""
    parser = matrix_parser(__doc__, times=3)
    parser.add_argument("--quick", action="store_true", help="one run for each strategy and number of ranks")
    parser.add_argument("--strategy", action="append", choices=STRATEGIES)
    parser.add_argument("--ranks", action="append", type=int)
    parser.add_argument("--python", help="the interpreter of the ranks")
    options = parser.parse_args()
    strategies, ranks = options.strategy or STRATEGIES, options.ranks or RANKS
    runs = [Run(**{**line, "cell": Cell(**line["cell"])}) for line in read_lines(options.results)]
    done = {run.cell for run in runs}
    cells = quick_cells(strategies, ranks) if options.quick else all_cells(strategies, ranks, options.times)
    left = [one for one in cells if one not in done][: options.at_most]
    for _, together in itertools.groupby(left, lambda cell: replace(cell, strategy="")):
        made = _run(tuple(together), options.python)
        runs += made
        for run in made:
            append_run(options.results, run)
    show("\n".join(_describe(runs)), options.page, BEGIN, END)


def all_cells(strategies: Sequence[str], ranks: Sequence[int], times: int) -> Iterator[Cell]:
    """Every cell, strategies of one together, all kinds early: a matrix may be stopped."""
    kinds = list(itertools.product(WORKLOADS, DTYPES, OPTIMIZERS, ranks, range(1, times + 1)))
    random.Random(len(kinds)).shuffle(kinds)  # noqa: S311 - the same order every time
    for workload, dtype, optimizer, size, seed in kinds:
        for strategy in strategies:
            yield Cell(size, strategy, workload, dtype, optimizer, seed)


def quick_cells(strategies: Sequence[str], ranks: Sequence[int]) -> Iterator[Cell]:
    """Each strategy on each number of ranks, once."""
    kinds = list(itertools.product(WORKLOADS, DTYPES, OPTIMIZERS))
    for number, (size, strategy) in enumerate(itertools.product(ranks, strategies)):
        workload, dtype, optimizer = kinds[number * 7 % len(kinds)]  # 7 has no factor of their number
        yield Cell(size, strategy, workload, dtype, optimizer, number + 1)


def _run(cells: Sequence[Cell], python: str | None) -> list[Run]:
    """The strategies of cells that are alike otherwise, by one command."""
    load, cell = round(os.getloadavg()[0], 1), cells[0]
    flags = [
        *(
            "--steps",
            str(STEPS),
            "--nproc",
            str(cell.ranks),
            "--strategy",
            ",".join(one.strategy for one in cells),
        ),
        *("--workload", cell.workload),
        *("--dtype", cell.dtype, "--optimizer", cell.optimizer, "--seed", str(cell.seed)),
        *(("--python", python) if python else ()),
    ]
    report = train(*flags, limit_seconds=LIMIT_SECONDS * len(cells))
    results = {result["strategy"]: result for result in report["strategies"]}
    return [_read_result(one, results[one.strategy], load) for one in cells]


def _read_result(cell: Cell, result: Any, load: float) -> Run:
    proved = {one["name"]: one for one in result["verifications"]}
    checkpoint = proved.get("checkpoint", {})
    gradients = [proved.get(name, {}) for name in ("gradient_of_first_step", "after_timed_steps")]
    shares = [one["value"] / one["limit"] for one in gradients if one.get("value") is not None]
    return Run(
        cell=cell,
        load=load,
        outcome=result["outcome"],
        codes=tuple(finding["code"] for finding in result["findings"]),
        message=next((finding["message"] for finding in result["findings"]), ""),
        checkpoint=checkpoint.get("passed"),
        checkpoint_error=checkpoint.get("value"),
        gradient_share=round(max(shares), 3) if shares else None,
        seconds=round(result.get("seconds") or 0.0, 2),
    )


def _describe(runs: Sequence[Run]) -> Iterator[str]:
    ran = [run for run in runs if run.outcome != SKIPPED]
    if not ran:
        return
    yield f"{versions()}; {len(ran)} runs, one-minute load before a run"
    yield f"{spread(run.load for run in ran)}."
    yield ""
    yield "Runs without a FAIL or ERROR:"
    yield ""
    sizes = sorted({run.cell.ranks for run in ran})
    heads = ["1 rank" if size == 1 else f"{size} ranks" for size in sizes]
    yield f"| strategy | {' | '.join(heads)} | error after a checkpoint | of the gradients' limit |"
    yield f"| --- |{' --- |' * (len(sizes) + 2)}"
    for strategy in STRATEGIES:
        own = [run for run in ran if run.cell.strategy == strategy]
        if own:
            counts = [_count([run for run in own if run.cell.ranks == size]) for size in sizes]
            errors = [run.checkpoint_error for run in own if isinstance(run.checkpoint_error, float)]
            shares = [run.gradient_share for run in own if run.gradient_share is not None]
            largest = (f"{max(errors):.1e}" if errors else "none", f"{max(shares):.2f}" if shares else "none")
            yield f"| {strategy} | {' | '.join((*counts, *largest))} |"
    yield ""
    found = Counter(code for run in ran for code in set(run.codes))
    codes = ", ".join(f"{code} in {count}" for code, count in sorted(found.items())) or "nothing"
    yield f"{sum(run.outcome in SOUND for run in ran)} of {len(ran)} without a FAIL or ERROR; found: {codes}."
    for run in ran:
        if run.outcome not in SOUND:
            yield f"- not right: {run.cell}, load {run.load}: {run.message}"


def _count(runs: Sequence[Run]) -> str:
    return f"{sum(run.outcome in SOUND for run in runs)} of {len(runs)}" if runs else "-"


if __name__ == "__main__":
    main()
