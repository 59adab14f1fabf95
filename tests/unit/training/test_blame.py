"""What a wrong number is blamed on: a rule that was broken, by its name, or the one rank that has other
numbers.
"""

from dataclasses import replace
from typing import Any

import pytest

from gpudiag.checks.training.strategy import judge_training
from gpudiag.model.evidence import Evidence, RankSubject
from gpudiag.model.finding import Finding, Owner
from gpudiag.model.measure import Incident, IncidentKind
from gpudiag.model.training import KeptTensor, RankStep, StrategyMeasurement, TensorFact
from tests.unit.training.measurements import (
    STEPS,
    TENSORS,
    make_measurement,
    make_parts,
    make_start,
    make_step,
    make_step_parts,
    tensors,
    with_steps,
)

WRONG = {"gradient_error": 0.6, "gradients": tensors("w", 0.3)}
MOVED = {"parameter_error": 0.02, "parameters": tensors("m", 0.02)}


def of_ranks(workers: int, change: Any) -> StrategyMeasurement:
    """A run of so many ranks; `change` is what is otherwise on a rank in a step."""
    ranks = range(workers)

    def step_of(rank: int, step: int) -> RankStep:
        sound = make_step(rank, step, samples=((step * workers + rank) % (2 * workers),), loss=2.0)
        return replace(sound, **change(rank, step))

    return make_measurement(
        world_size=workers,
        starts=tuple(
            make_start(rank, world_size=workers, workers=workers, sample_count=2 * workers) for rank in ranks
        ),
        steps=tuple(step_of(rank, step) for rank in ranks for step in range(STEPS)),
    )


def first(measurement: StrategyMeasurement) -> Finding:
    return judge_training(measurement)[0]


def rank_of(finding: Finding) -> int | None:
    return finding.subject.rank if isinstance(finding.subject, RankSubject) else None


def in_parts(workers: int, *shares: float, **values: Any) -> Finding:
    """The finding where the gradients of all ranks are made of those shares, alike."""
    made = make_parts(shares=shares, **values)
    return first(of_ranks(workers, lambda rank, step: {**WRONG, "gradient_parts": made}))


@pytest.mark.parametrize(
    ("workers", "factor", "code", "words"),
    [
        (2, 2.0, "train.gradients_summed", "summed"),
        (4, 4.0, "train.gradients_summed", "summed"),
        (3, 1 / 3, "train.gradients_scaled", "twice"),
        (3, 3 / 2, "train.gradients_scaled", "divided by 2 and not by 3 ranks"),
        (4, 4 / 3, "train.gradients_scaled", "divided by 3 and not by 4 ranks"),
        (3, 5.0, "train.gradients_scaled", "5 passes give that are accumulated"),
        (3, 0.125, "train.gradients_scaled", "1/8 of"),
        (2, 0.0371, "train.gradients_scaled", "clipping"),
    ],
)
def test_a_clean_multiple_is_named_as_such(workers: int, factor: float, code: str, words: str) -> None:
    finding = in_parts(workers, *([factor / workers] * workers))
    assert (finding.code, rank_of(finding), finding.owner) == (code, None, Owner.JOB)
    assert words in finding.message


@pytest.mark.parametrize(
    ("shares", "rank", "words"),
    [
        ((0.5, 0.55), 1, "1.1 times"),
        ((0.4, 0.5), 0, "0.8 times"),
        ((0.5, -0.5), 1, "-1 times"),
        ((1 / 3, 0.0, 1 / 3), 1, "without rank 1, divided by 3"),
        ((0.5, 0.0, 0.5), 1, "without rank 1, divided by 2"),
        ((0.01, 0.02), None, "clipping before the averaging"),
    ],
)
def test_a_rank_that_counts_otherwise_is_named(
    shares: tuple[float, ...], rank: int | None, words: str
) -> None:
    finding = in_parts(len(shares), *shares)
    assert (finding.code, rank_of(finding)) == ("train.ranks_weighed", rank)
    assert words in finding.message


@pytest.mark.parametrize("workers", [3, 5, 8])
def test_a_tensor_with_fewer_elements_than_ranks_blames_no_rank_by_shares(workers: int) -> None:
    """As many shares as elements explain any error."""
    shares = (0.4, *[0.5 / workers] * (workers - 1))
    assert in_parts(workers, *shares, elements=workers).code != "train.ranks_weighed"
    assert in_parts(workers, *shares, elements=workers + 1).code == "train.ranks_weighed"


def test_ranks_that_average_in_pairs_are_told_from_those_that_do_not_average() -> None:
    pairs = {0: (0.5, 0.5, 0, 0), 1: (0.5, 0.5, 0, 0), 2: (0, 0, 0.5, 0.5), 3: (0, 0, 0.5, 0.5)}
    groups = first(
        of_ranks(4, lambda rank, step: {**WRONG, "gradient_parts": make_parts(shares=pairs[rank])})
    )
    assert groups.code == "train.averaged_in_groups"
    assert "ranks 0 and 1; ranks 2 and 3" in groups.message
    own = {rank: tuple(float(rank == other) for other in range(3)) for rank in range(3)}
    alone = first(of_ranks(3, lambda rank, step: {**WRONG, "gradient_parts": make_parts(shares=own[rank])}))
    assert (alone.code, rank_of(alone)) == ("train.not_averaged", None)

    def stops(rank: int, step: int) -> dict[str, Any]:
        return {**WRONG, "gradient_parts": make_parts(shares=own[2])} if (rank, step) == (2, 3) else {}

    one = first(of_ranks(3, stops))
    assert (one.code, rank_of(one)) == ("train.not_averaged", 2)
    tensor = replace(make_parts(shares=own[0]), tensors=("1.bias",))
    left = first(of_ranks(3, lambda rank, step: {**WRONG, "gradient_parts": tensor} if not rank else {}))
    assert left.code == "train.tensor_not_averaged"
    assert "1.bias" in left.message


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_one_rank_whose_numbers_nothing_explains_is_the_hardwares(workers: int) -> None:
    unexplained = make_parts(rest=0.5, elements_off=1)

    def held(rank: int, step: int) -> dict[str, Any]:
        return {**WRONG, "gradient_parts": unexplained} if rank == 1 else {}

    def computed(rank: int, step: int) -> dict[str, Any]:
        return {**WRONG, "gradient_parts": unexplained, "computed_error": 0.9 if rank == 1 else 1e-8}

    def shard(rank: int, step: int) -> dict[str, Any]:
        flipped = replace(unexplained, flipped_average=True)
        return {**WRONG, "gradient_parts": flipped, "held_error": 0.9 if rank == 1 else 1e-8}

    def parameter(rank: int, step: int) -> dict[str, Any]:
        return {**MOVED, "step_parts": make_step_parts(elements_off=1)} if rank == 1 else {}

    for change in (held, computed, shard, parameter):
        finding = first(of_ranks(workers, change))
        assert (finding.code, rank_of(finding), finding.owner) == (
            "train.rank_corrupt",
            1,
            Owner.HARDWARE,
        )
        assert finding.blocks_jobs


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_a_bit_that_another_rank_handed_in_is_not_blamed_on_the_rank_that_keeps_the_shard(
    workers: int,
) -> None:
    unexplained = make_parts(rest=0.5, elements_off=1)

    def of_shard_0(**values: Any) -> Finding:
        made = replace(unexplained, **values)

        def change(rank: int, step: int) -> dict[str, Any]:
            return {**WRONG, "gradient_parts": made, "held_error": 0.9 if rank == 0 else 1e-8}

        return first(of_ranks(workers, change))

    sent = of_shard_0(flipped_ranks=(1,))
    assert (sent.code, rank_of(sent), sent.owner) == ("train.rank_corrupt", 1, Owner.HARDWARE)
    assert "gave to the averaging" in sent.message
    for unclear in ({}, {"flipped_ranks": (0, 1)}, {"flipped_ranks": (1,), "flipped_average": True}):
        told = of_shard_0(**unclear)
        assert (told.code, rank_of(told), told.owner) == ("train.gradient", None, Owner.HARDWARE)
        assert "one rank among" in told.message
    kept = of_shard_0(flipped_average=True)
    assert (kept.code, rank_of(kept)) == ("train.rank_corrupt", 0)


def test_what_went_wrong_between_ranks_that_computed_right_is_not_the_script() -> None:
    def alike(**values: Any) -> Finding:
        made = make_parts(rest=0.5, **values)
        return first(
            of_ranks(3, lambda rank, step: {**WRONG, "gradient_parts": made, "computed_error": 1e-8})
        )

    flipped = alike(elements_off=1)
    assert (flipped.code, flipped.owner) == ("train.gradient", Owner.HARDWARE)
    rounded = alike(rounded_to="bfloat16")
    assert "rounded to bfloat16" in rounded.message
    hook = alike()
    assert (hook.owner, "communication hook" in hook.message) == (Owner.JOB, True)


def test_gradients_of_another_step_are_told_by_the_step() -> None:
    def begins(rank: int, step: int) -> dict[str, Any]:
        nothing = make_parts(shares=(0.0, 0.0), step_before=None, accumulated=None)
        late = make_parts(rest=0.4, step_before=1e-8)
        return {**WRONG, "gradient_parts": late if step else nothing}

    assert first(of_ranks(2, begins)).code == "train.gradients_late"
    assert in_parts(2, 0.5, 0.5, rest=0.4, accumulated=1e-8).code == "train.gradients_accumulated"
    zero = in_parts(2, 0.0, 0.0)
    assert (zero.code, "zero" in zero.message) == ("train.gradients_scaled", True)


@pytest.mark.parametrize(
    ("values", "code", "words"),
    [
        ({"tensors": ("1.bias",), "unmoved": ("1.bias",)}, "train.tensor_not_stepped", "1.bias"),
        ({"unmoved": TENSORS}, "train.ranks_differ", "changes no parameter"),
        ({"scale": 2.0, "rest": 1e-8}, "train.ranks_differ", "2 times"),
        ({"scale": 1.0, "decay": 0.005, "rest": 1e-8}, "train.ranks_differ", "weight decay"),
        ({"step_before": 1e-8}, "train.gradients_late", "step 0"),
    ],
)
def test_a_step_that_a_rule_explains_is_no_corrupt_rank(
    values: dict[str, Any], code: str, words: str
) -> None:
    made = make_step_parts(**values)
    alone = first(
        of_ranks(3, lambda rank, step: {**MOVED, "step_parts": made} if (rank, step) == (1, 1) else {})
    )
    assert (alone.code, rank_of(alone)) == (code, 1)
    assert words in alone.message
    everybody = first(of_ranks(3, lambda rank, step: {**MOVED, "step_parts": made} if step else {}))
    assert (everybody.code, rank_of(everybody)) == (code.replace("ranks_differ", "parameters"), None)


def test_no_message_has_an_empty_name() -> None:
    nameless = with_steps({(rank, 0): {"gradient_error": 2e-5} for rank in (0, 1)})
    finding = first(nameless)
    assert (finding.code, "  " in finding.message) == ("train.gradient", False)
    assert "of ranks 0 and 1 are wrong" in finding.message


def test_other_rows_or_labels_on_a_rank_explain_its_gradients() -> None:
    spoilt = {(1, step): {**WRONG, "changed": ("targets",)} for step in range(STEPS)}
    findings = judge_training(with_steps(spoilt))
    assert [finding.code for finding in findings] == ["train.other_samples"]
    assert rank_of(findings[0]) == 1
    assert "targets" in findings[0].message


def test_a_layer_that_is_not_sharded_is_named() -> None:
    kept = (KeptTensor("0.weight", 30, 60), KeptTensor("0.bias", 10, 10), KeptTensor("1.weight", 15, 30))
    whole = make_measurement(
        strategy="fsdp2",
        starts=tuple(make_start(rank, parameters_here=55, parameters_kept=kept) for rank in (0, 1)),
    )
    finding = first(whole)
    assert (finding.code, "0.bias whole" in finding.message) == ("train.sharding", True)


def test_of_two_ranks_the_one_whose_buffers_changed_is_named() -> None:
    measurement = with_steps({(1, 2): {**WRONG, "buffers": (TensorFact("shift", "x"),)}})
    findings = judge_training(measurement)
    assert ([finding.code for finding in findings], rank_of(findings[0])) == (["train.buffers_differ"], 1)


def test_shards_of_own_gradients_are_told_from_a_corrupt_shard() -> None:
    patchwork = make_parts(rest=0.5)
    own = {**WRONG, "gradient_parts": patchwork, "held_error": 0.6, "own_gradient_error": 1e-8}
    assert first(of_ranks(2, lambda rank, step: own)).code == "train.not_averaged"
    some = {**own, "own_gradient_error": 0.5, "gradient_parts": replace(patchwork, tensors=("1.bias",))}
    left = first(of_ranks(2, lambda rank, step: some))
    assert (left.code, "1.bias" in left.message) == ("train.tensor_not_averaged", True)


def rates(scale: float, rest: float, without: float, decay: float = 1.6e-5) -> dict[str, Any]:
    return {"scale": scale, "decay": decay, "rest": rest, "rest_without_decay": without}


@pytest.mark.parametrize(
    ("values", "code", "words"),
    [
        (rates(1.03, 0.029, 0.03), "train.parameters", "1.03 times"),
        (rates(2.0, 1e-7, 1e-7), "train.parameters", "2 times"),
        (rates(1.0, 1e-6, 0.3, decay=0.005), "train.parameters", "weight decay"),
        ({"rounded_to": "bfloat16", **rates(0.98, 0.04, 0.041)}, "train.parameters", "rounded to bfloat16"),
        ({"rest_of_gradient_before": 1e-4, **rates(0.8, 0.4, 0.4)}, "train.gradients_late",
            "step 0 in step 1"),
        ({"rest_of_gradient_before": 0.35, **rates(0.8, 0.4, 0.4)}, "train.parameters",
            "not those of a single"),
        (rates(1.01, 0.02, 0.021), "train.parameters",
            "not those of a single process after step 1 on rank 1"),
        ({"elements_off": 1}, "train.rank_corrupt", "rank 1 alone"),
    ],
)  # fmt: skip
def test_a_step_of_one_ranks_shards_is_blamed_on_what_explains_it(
    values: dict[str, Any], code: str, words: str
) -> None:
    """The whole parameters are the same on all ranks: only the part of one rank went wrong."""
    made = make_step_parts(**values)

    def change(rank: int, step: int) -> dict[str, Any]:
        return {**MOVED, "step_parts": made if rank == 1 else None} if step else {}

    finding = first(of_ranks(3, change))
    assert (finding.code, words in finding.message) == (code, True), finding.message
    assert rank_of(finding) == 1


def test_a_rank_that_keeps_its_gradients_is_named_by_what_was_there_before_its_forward_pass() -> None:
    patchwork = {**WRONG, "gradient_parts": make_parts(rest=0.4)}

    def keeps(*guilty: int) -> Finding:
        return first(
            of_ranks(
                3, lambda rank, step: {**patchwork, "gradients_left": 4 * (rank in guilty)} if step else {}
            )
        )

    assert (keeps(1).code, rank_of(keeps(1))) == ("train.gradients_accumulated", 1)
    assert "on rank 1" in keeps(1).message
    assert (keeps(0, 1, 2).code, rank_of(keeps(0, 1, 2))) == ("train.gradients_accumulated", None)
    assert keeps().code != "train.gradients_accumulated"


def test_old_gradients_of_one_rank_are_found_in_the_average_and_in_its_shards() -> None:
    handed_in = make_parts(shares=(0.4, 0.3), rest=0.3, shares_before=(0.0, 0.5), rest_with_before=1e-8)
    finding = first(of_ranks(2, lambda rank, step: {**WRONG, "gradient_parts": handed_in} if step else {}))
    assert (finding.code, rank_of(finding)) == ("train.gradients_late", 1)
    assert "to the averaging of step 1" in finding.message

    def shards(rank: int, step: int) -> dict[str, Any]:
        parts = make_parts(rest=0.4, step_before=1e-8 if rank == 1 else 0.7)
        held = 0.6 if rank == 1 else 1e-8
        return {**WRONG, "gradient_parts": parts, "held_error": held} if step else {}

    held = first(of_ranks(2, shards))
    assert (held.code, rank_of(held)) == ("train.gradients_late", 1)


@pytest.mark.parametrize(("noise", "words"), [("a", "the same on all"), (None, "other ones on each")])
def test_random_numbers_in_the_forward_pass_are_named_where_what_ranks_compute_is_off(
    noise: str | None, words: str
) -> None:
    spoilt = {**WRONG, "gradient_parts": make_parts(rest=0.4)}

    def draws(rank: int, step: int) -> dict[str, Any]:
        return {**spoilt, "computed_error": 0.3, "noise": noise or f"r{rank}"}

    finding = first(of_ranks(3, draws))
    assert (finding.code, rank_of(finding)) == ("train.gradient", None)
    assert "draws random numbers" in finding.message
    assert words in finding.message
    right = first(of_ranks(3, lambda rank, step: {**spoilt, "computed_error": 1e-8, "noise": f"r{rank}"}))
    assert "random numbers" not in right.message


@pytest.mark.parametrize("factor", [1.0004, 1.00003, 0.9999])
def test_a_factor_next_to_one_is_given_with_its_digits(factor: float) -> None:
    finding = in_parts(2, factor / 2, factor / 2)
    assert (finding.code, f"{factor:.6g} times" in finding.message) == ("train.gradients_scaled", True)


def test_one_rank_that_counts_one_percent_more_is_named() -> None:
    finding = in_parts(3, 1 / 3, 1.01 / 3, 1 / 3)
    assert (finding.code, rank_of(finding)) == ("train.ranks_weighed", 1)


@pytest.mark.parametrize(("strategy", "words"), [("fsdp2", "before fully_shard"), ("ddp", "wrapped")])
def test_an_optimizer_of_other_tensors_is_the_cause_of_what_follows_from_it(
    strategy: str, words: str
) -> None:
    starts = tuple(make_start(rank, foreign_in_optimizer=4) for rank in (0, 1))
    raised = tuple(
        Incident(
            IncidentKind.RAISED, rank, "a1", "verify", 3.0, (Evidence("exception", "KeyError", source="x"),)
        )
        for rank in (0, 1)
    )
    measurement = make_measurement(strategy=strategy, starts=starts, proofs=(), incidents=raised)
    findings = judge_training(measurement)
    assert findings[0].code == "train.parameters_unmoved"
    assert words in findings[0].message
    assert "rank.raised" not in [finding.code for finding in findings]


def test_an_exception_after_a_step_that_was_wrong_comes_second() -> None:
    doubled = {**WRONG, "gradient_parts": make_parts(shares=(1.0, 1.0))}
    fact = Evidence("exception", "KeyError", source="x")
    raised = Incident(IncidentKind.RAISED, 1, "a1", "verify", 3.0, (fact,))
    wrong = replace(of_ranks(2, lambda rank, step: doubled), proofs=(), incidents=(raised,))
    assert [finding.code for finding in judge_training(wrong)] == ["train.gradients_summed", "rank.raised"]


def test_weights_that_were_rounded_before_the_first_step_are_no_broadcast_that_is_missing() -> None:
    rounded = make_measurement(
        starts=tuple(
            make_start(rank, parameters=tensors("r", 0.002), parameters_rounded_to="bfloat16")
            for rank in (0, 1)
        )
    )
    findings = judge_training(rounded)
    assert [finding.code for finding in findings] == ["train.parameters"]
    assert "bfloat16" in findings[0].message
    assert "float32" in findings[0].remedy


def test_a_batch_that_is_shorter_than_the_others_is_named_with_its_rank() -> None:
    finding = first(with_steps({(1, 1): {"samples": tuple(range(18, 20))}}))
    assert (finding.code, rank_of(finding)) == ("train.samples_left_out", 1)
    assert "rank 1 has 2 samples in step 1, where other batches have 6" in finding.message
    assert "drop_last" in finding.remedy


def test_a_sampler_that_gives_one_sample_twice_is_not_to_be_replaced_by_a_sampler() -> None:
    finding = first(with_steps({(1, 1): {"samples": (0, *range(19, 24))}}))
    assert finding.code == "train.same_samples"
    assert "same 1 sample " in finding.message
    assert "DistributedSampler" not in finding.remedy
