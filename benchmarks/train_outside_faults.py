r"""Does `gpudiag train` name the cause of a fault planted from outside, on two, three and four ranks?

Plants each fault of the folder planted in the ranks' interpreter (a patch of torch or DeepSpeed behind
gpudiag's back), and holds the first finding against the cause that must be named: its code, its rank, and
where it has more, a word. Prints Markdown.

    python -m benchmarks.train_outside_faults --results FILE [--ranks 2 --ranks 3] [--fault NAME] \
        [--python PATH] [--page docs/training.md]

`--python` is an interpreter with DeepSpeed: without it the faults of DeepSpeed are left out.

Further flags: matrix.py.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.matrix import append_run, matrix_parser, read_lines, show, spread, train, versions

LIMIT_SECONDS = 300.0
STEPS = 6
RANKS = (2, 3, 4)
GUILTY = 1
BEGIN, END = "<!-- the faults from outside begin -->", "<!-- the faults from outside end -->"
PLANTED = Path(__file__).with_name("planted")


@dataclass(frozen=True, slots=True)
class Cause:
    """What the first finding must have: one of these codes, the rank, the words, who must act."""

    codes: tuple[str, ...]
    rank: int | None = None
    words: str = ""
    owner: str | None = None
    strategy: str = "ddp"
    flags: tuple[str, ...] = ()
    least: int = 2  # ranks that it takes
    at_two: "Cause | None" = None  # where two ranks leave another cause


def _cause(code: str, rank: int | None = None, words: str = "", **more: Any) -> Cause:
    return Cause((f"train.{code}",), rank, words, **more)


_HARDWARE: dict[str, Any] = {"owner": "hardware"}
_SHARDED: dict[str, Any] = {"strategy": "fsdp2"}
_ZERO: dict[str, Any] = {"strategy": "zero2"}
_HALF = ("--dtype", "float16")

FAULTS: dict[str, Cause] = {
    "bit_of_average": _cause("rank_corrupt", GUILTY, **_HARDWARE),
    "bit_of_own_gradient": _cause("rank_corrupt", GUILTY, **_HARDWARE),
    "bit_on_the_way": _cause("rank_corrupt", GUILTY, "gave to the averaging", **_HARDWARE),
    "bit_of_parameter": _cause("rank_corrupt", GUILTY, **_HARDWARE),
    "bits_of_sharded_gradient": _cause("rank_corrupt", GUILTY, **_HARDWARE, **_SHARDED),
    "bit_of_own_gradient_before_shards": _cause("rank_corrupt", GUILTY, "computes", **_HARDWARE, **_SHARDED),
    "bit_handed_in_for_shards": _cause(
        "rank_corrupt", GUILTY, "gave to the averaging", **_HARDWARE, **_SHARDED
    ),
    "number_handed_in_for_shards": _cause("gradient", None, "one rank among", **_HARDWARE, **_SHARDED),
    "bit_of_own_gradient_before_zero": _cause("rank_corrupt", GUILTY, "computes", **_HARDWARE, **_ZERO),
    "bit_handed_in_to_zero": _cause("rank_corrupt", GUILTY, "gave to the averaging", **_HARDWARE, **_ZERO),
    "buffer_of_one_rank": _cause("buffers_differ", GUILTY),
    "nan_of_own_gradient": _cause("not_finite", GUILTY),
    "never_divided": _cause("gradients_summed"),
    "divided_twice": _cause("gradients_scaled", None, "divided by the number of ranks twice"),
    "divided_by_others": _cause(
        "gradients_scaled", None, "ranks", at_two=_cause("gradients_summed"), flags=()
    ),
    "five_passes_added": _cause("gradients_scaled", None, "5 passes"),
    "fifth_of_the_average": _cause("gradients_scaled", None, "1/5 of"),
    "clipped_before_averaging": _cause("ranks_weighed", None, "clipping before"),
    "clipped_after_averaging": _cause("gradients_scaled", None, "clipping"),
    "one_rank_counts_more": _cause("ranks_weighed", GUILTY, "1.1"),
    "one_rank_counts_less": _cause("ranks_weighed", GUILTY, "0.8"),
    "one_rank_negative": _cause("ranks_weighed", GUILTY, "-1"),
    "one_rank_left_out": _cause("ranks_weighed", GUILTY, "without rank 1"),
    "one_rank_not_counted": _cause("ranks_weighed", GUILTY, "without rank 1"),
    "gradients_of_rank_0": _cause("ranks_weighed", None, "without rank"),
    "one_tensor_left_out_on_one_rank": _cause("ranks_weighed", GUILTY, "1.weight"),
    "pairs": _cause("averaged_in_groups", None, "ranks 0 and 1", at_two=None, least=3),
    "own_gradients_of_one_rank": _cause("not_averaged", GUILTY),
    "inner_model_called": _cause("not_averaged"),
    "second_bucket_not_averaged": _cause("tensor_not_averaged"),
    "one_step_without_averaging": _cause("not_averaged", None, "step 2"),
    "one_tensor_not_averaged": _cause("tensor_not_averaged", None, "bias"),
    "rounded_on_the_way": _cause("gradient", None, "bfloat16"),
    "late_averages": _cause("gradients_late"),
    "late_steps": _cause("gradients_late"),
    "never_set_to_zero": _cause("gradients_accumulated"),
    "no_step_on_one_rank": _cause("ranks_differ", GUILTY, "changes no parameter"),
    "twice_the_rate": _cause("parameters", None, "2 times"),
    "twice_the_rate_on_one_rank": _cause("ranks_differ", GUILTY, "2 times"),
    "weight_decay": _cause("parameters", None, "weight decay"),
    "momentum_lost": _cause("parameters", None, "step 2"),
    "tensor_not_in_optimizer": _cause("tensor_not_stepped", None, "1.weight"),
    "tensor_not_in_one_optimizer": _cause("tensor_not_stepped", GUILTY, "1.weight"),
    "labels_of_one_rank": _cause("other_samples", GUILTY, "targets"),
    "rows_of_one_rank": _cause("other_samples", GUILTY, "inputs"),
    "labels_of_all_ranks": _cause("other_samples", None, "targets"),
    "half_batches": _cause("samples_left_out"),
    "same_shard": _cause("same_samples"),
    "same_shard_twice": _cause("same_samples", None, "ranks 0 and 1"),
    "same_order": _cause("order_repeats"),
    "start_not_broadcast": _cause("initial_parameters"),
    "start_of_one_rank": _cause("initial_parameters", GUILTY),
    "layer_not_sharded": _cause("sharding", None, "1.weight", **_SHARDED),
    "sharded_in_pairs": _cause("sharding", None, "groups of 2", **_SHARDED, least=4),
    "sharded_sums": _cause("gradients_summed", **_SHARDED),
    "stage_1_for_3": _cause("sharding", None, "stage 1", strategy="zero3"),
    "optimizer_not_restored": _cause("checkpoint", None, "optimizer"),
    "scaler_not_restored": _cause("checkpoint", None, "scaler", flags=_HALF),
    "scaler_tracker_lost": _cause("checkpoint", None, "scaler", flags=_HALF),
    "model_not_restored": _cause("checkpoint", None, "model"),
    "sharded_optimizer_not_restored": _cause("checkpoint", None, "optimizer", **_SHARDED),
    "sharded_model_not_restored": _cause("checkpoint", None, "model", **_SHARDED),
    "optimizer_before_sharding": _cause("parameters_unmoved", None, "before fully_shard", **_SHARDED),
    "optimizer_of_a_copy": _cause("parameters_unmoved", None, "not the model's"),
    "sharded_twice_the_rate_on_one_rank": _cause("parameters", GUILTY, "2 times", **_SHARDED),
    "sharded_little_more_rate_on_one_rank": _cause("parameters", GUILTY, "1.06 times", **_SHARDED),
    "weights_in_bfloat16": _cause("parameters", None, "rounded to bfloat16 before"),
    "weights_rounded_after_steps": _cause("parameters", None, "rounded to bfloat16 in step"),
    "sharded_weights_in_bfloat16": _cause("parameters", None, "rounded to bfloat16 before", **_SHARDED),
    "dropout_left_on": _cause("gradient", None, "draws random numbers"),
    "dropout_with_one_seed": _cause("gradient", None, "the same on all of them"),
    "not_set_to_zero_on_one_rank": _cause("gradients_accumulated", GUILTY, "zero_grad()"),
    "sharded_not_set_to_zero_on_one_rank": _cause("gradients_accumulated", GUILTY, "zero_grad()", **_SHARDED),
    "one_rank_hands_in_old_gradients": _cause("gradients_late", GUILTY, "to the averaging"),
    "one_step_with_old_gradients": _cause("gradients_late", GUILTY, "step 2"),
    "sharded_old_gradients_of_one_rank": _cause("gradients_late", GUILTY, **_SHARDED),
    "little_too_much": _cause("gradients_scaled", None, "1.001 times"),
    "short_last_batch_of_one_rank": _cause("samples_left_out", GUILTY, "where other batches have"),
    "sampler_that_pads": _cause("same_samples", None, "the same 1 sample"),
    "sharded_no_step_on_one_rank": _cause("parameters", GUILTY, "changes no parameter", **_SHARDED),
    "sharded_decay_on_one_rank": _cause("parameters", GUILTY, "weight decay", **_SHARDED),
    "sharded_dropout_left_on": _cause("gradient", None, "draws random numbers", **_SHARDED),
    "sharded_clipped_by_own_norm": _cause("gradients_scaled", None, "norm of that part alone", **_SHARDED),
    "clipped_by_norms_of_all_ranks": _cause("gradients_scaled", None, "clipping"),
    "clipped_by_value": _cause("gradient", None, "clipping each value"),
    "forward_inside_no_sync": _cause("not_averaged"),
    "float16_on_the_way": _cause("gradient", None, "float16"),
    "sharded_reduced_in_bfloat16": _cause("gradient", None, "bfloat16", **_SHARDED),
    "sharded_without_synchronization": _cause("not_averaged", None, "none reached", **_SHARDED),
    "loss_added_up": _cause("gradients_scaled", None, "8 times"),
    "sharded_optimizer_after_forward": _cause("parameters_unmoved", None, "not the model's", **_SHARDED),
    "momentum_lost_on_one_rank": _cause("ranks_differ", GUILTY, "without the momentum", owner="job"),
    "other_momentum": _cause("parameters", None, "momentum is 0.5"),
    "rate_that_decays": _cause("parameters", None, "lr is 0.045"),
    "weights_replaced_after_the_optimizer": _cause("parameters_unmoved", None, "not the model's"),
    "frozen_on_one_rank": _cause("unused_parameters", GUILTY, "got no gradient"),
    "weights_of_one_rank_reset": _cause("ranks_differ", GUILTY, "older weights", owner="job"),
    "average_of_weights_written_back": _cause("parameters", None, "other code"),
    "zero_other_rate_on_one_rank": _cause("parameters", GUILTY, "lr is 0.1", strategy="zero1"),
    "zero_no_step_on_one_rank": _cause("parameters", GUILTY, "changes no parameter", strategy="zero2"),
    "zero_momentum_lost_on_one_rank": _cause("parameters", GUILTY, "without the momentum", strategy="zero3"),
    "zero_counts_one_rank_more": _cause("ranks_weighed", GUILTY, "1.1", strategy="zero3"),
    "exception_on_one_rank": Cause(("rank.raised",), GUILTY, "mat1 and mat2"),
    "exception_on_all_ranks": Cause(("rank.raised",), None, "all"),
    "one_rank_slow": _cause("straggler", GUILTY),
}


@dataclass(frozen=True, slots=True)
class Run:
    """One line of the results: what was planted, on how many ranks, which turn, the report."""

    fault: str
    ranks: int
    turn: int
    load: float  # of the last minute, before the run
    outcome: str
    codes: tuple[str, ...]
    message: str  # of the first finding
    right: bool


def main() -> None:
    """Make the runs that are missing, and print what there is."""
    parser = matrix_parser(__doc__, times=1)
    parser.add_argument("--ranks", action="append", type=int)
    parser.add_argument("--fault", action="append", choices=tuple(FAULTS))
    parser.add_argument("--python", help="an interpreter with DeepSpeed")
    options = parser.parse_args()
    runs = [Run(**line) for line in read_lines(options.results)]
    done = {(run.fault, run.ranks, run.turn) for run in runs}
    planned = [
        (name, ranks, turn)
        for turn in range(options.times)
        for ranks in options.ranks or RANKS
        for name in options.fault or FAULTS
        if ranks >= FAULTS[name].least and (options.python or not FAULTS[name].strategy.startswith("zero"))
    ]
    for name, ranks, turn in [one for one in planned if one not in done][: options.at_most]:
        run = _run(name, ranks, turn, options.python)
        runs.append(run)
        append_run(options.results, run)
    show("\n".join(_describe(runs)), options.page, BEGIN, END)


def _run(name: str, ranks: int, turn: int, python: str | None) -> Run:
    load = os.getloadavg()[0]
    cause = cause_of(name, ranks)
    other = ("--python", python) if python is not None and cause.strategy.startswith("zero") else ()
    flags = ("--nproc", str(ranks), "--strategy", cause.strategy, "--seed", str(turn + 1))
    report = train_with(name, *flags, *cause.flags, *other)
    first = next(iter(report["findings"]), None)
    return Run(
        fault=name,
        ranks=ranks,
        turn=turn,
        load=round(load, 1),
        outcome=report["outcome"],
        codes=tuple(finding["code"] for finding in report["findings"]),
        message=first["message"] if first else "",
        right=first is not None and names_cause(first, cause),
    )


def train_with(fault: str, *flags: str) -> Any:
    """The report of `gpudiag train` with that fault planted in its ranks."""
    folders = (str(PLANTED), os.environ.get("PYTHONPATH", ""))
    variables = {"PYTHONPATH": os.pathsep.join(filter(None, folders)), "GPUDIAG_PLANTED": fault}
    return train("--steps", str(STEPS), *flags, limit_seconds=LIMIT_SECONDS, variables=variables)


def names_cause(finding: Any, cause: Cause) -> bool:
    """Whether a finding names that cause, its rank, and who must act."""
    return (
        finding["code"] in cause.codes
        and cause.rank in (None, finding["subject"].get("rank"))
        and cause.words in finding["message"]
        and cause.owner in (None, finding["owner"])
    )


def cause_of(name: str, ranks: int) -> Cause:
    """What must be named where that fault is planted in one of so many ranks."""
    cause = FAULTS[name]
    return cause.at_two if ranks == 2 and cause.at_two is not None else cause


def _describe(runs: Sequence[Run]) -> Iterator[str]:
    if not runs:
        return
    yield f"{versions()}; {len(runs)} runs of {len({run.fault for run in runs})} faults,"
    yield f"one-minute load before a run {spread(run.load for run in runs)}."
    right = sum(run.right for run in runs)
    found = sum(run.outcome not in ("pass", "skip") for run in runs)
    yield (
        f"The right cause in {right} of {len(runs)}, found without it in {found - right},"
        f" not found in {len(runs) - found}."
    )
    yield ""
    sizes = sorted({run.ranks for run in runs})
    yield f"| planted | must be named | {' | '.join(f'{size} ranks' for size in sizes)} |"
    yield f"| --- | --- |{' --- |' * len(sizes)}"
    for name, cause in FAULTS.items():
        own = [run for run in runs if run.fault == name]
        if own:
            cells = [_cell([run for run in own if run.ranks == size]) for size in sizes]
            under = "" if cause.strategy == "ddp" else f" ({cause.strategy})"
            yield f"| {name.replace('_', ' ')}{under} | {_describe_cause(cause)} | {' | '.join(cells)} |"
    yield ""
    for run in runs:
        if not run.right:
            yield (
                f"- not right: {run.fault.replace('_', ' ')}, {run.ranks} ranks:"
                f" {', '.join(run.codes) or run.outcome}: {run.message}"
            )


def _describe_cause(cause: Cause) -> str:
    rank = "" if cause.rank is None else f", rank {cause.rank}"
    return f"{' or '.join(cause.codes)}{rank}{f', {cause.owner}' if cause.owner else ''}"


def _cell(runs: Sequence[Run]) -> str:
    return f"{sum(run.right for run in runs)} of {len(runs)}" if runs else "-"


if __name__ == "__main__":
    main()
