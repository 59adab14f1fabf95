"""What is found in a training, and what is not: each fault by its code and subject, and its near misses."""

from dataclasses import replace
from typing import Any

import pytest

from gpudiag.checks.training import judge_training, training_outcome
from gpudiag.checks.training_verifications import is_verified, list_verifications
from gpudiag.model.evidence import Evidence, RankSubject
from gpudiag.model.finding import Outcome
from gpudiag.model.measure import Incident, IncidentKind, InjectedFault
from gpudiag.model.training import RankEpochEnd, StrategyMeasurement, TensorFact
from tests.unit.training.measurements import (
    STEPS,
    make_measurement,
    make_proof,
    make_speed,
    make_start,
    make_step,
    tensors,
    with_steps,
)


def codes(measurement: StrategyMeasurement) -> list[str]:
    return [finding.code for finding in judge_training(measurement)]


def rank_of(measurement: StrategyMeasurement) -> int | None:
    """The rank that the first finding is about."""
    subject = judge_training(measurement)[0].subject
    return subject.rank if isinstance(subject, RankSubject) else None


def step_of(measurement: StrategyMeasurement) -> Any:
    facts = {fact.name: fact.value for fact in judge_training(measurement)[0].evidence}
    return facts["step"]


def both(step: int, **values: Any) -> StrategyMeasurement:
    return with_steps({(rank, later): values for rank in (0, 1) for later in range(step, STEPS)})


def test_a_sound_run_has_no_finding_and_everything_is_proved() -> None:
    measurement = make_measurement()
    assert codes(measurement) == []
    assert training_outcome(()) is Outcome.PASS
    verifications = list_verifications(measurement, ())
    assert is_verified(verifications) is True
    assert all(one.passed is True for one in verifications)


def test_one_worker_that_pretends_to_be_parallel_fails() -> None:
    alone = make_measurement(starts=(make_start(0, world_size=1), make_start(1, world_size=1)))
    assert codes(alone) == ["train.not_parallel"]
    unseen = make_measurement(starts=(make_start(0, workers=1), make_start(1)))
    assert (codes(unseen), rank_of(unseen)) == (["train.not_parallel"], 0)
    findings = judge_training(alone)
    assert is_verified(list_verifications(alone, findings)) is False


def test_one_worker_that_was_asked_for_is_said_to_be_one() -> None:
    one = make_measurement(
        world_size=1,
        starts=(make_start(0, world_size=1, workers=1),),
        steps=tuple(
            make_step(
                0,
                step,
                samples=tuple(range(12 * (step % 2), 12 * (step % 2) + 12))[:: 1 - 2 * (step // 2)],
                loss=2.0,
            )
            for step in range(STEPS)
        ),
        epoch_ends=(RankEpochEnd(0, 0, 2, True), RankEpochEnd(0, 1, 2, True)),
        proofs=(make_proof(0),),
        speeds=(make_speed(0),),
    )
    assert codes(one) == ["train.single_worker"]
    assert training_outcome(judge_training(one)) is Outcome.WARN


@pytest.mark.parametrize(
    ("strategy", "here", "found"),
    [
        ("ddp", (100, 100), []),
        ("ddp", (50, 50), ["train.sharding"]),
        ("fsdp2", (55, 45), []),
        ("fsdp2", (51, 51), []),
        ("fsdp2", (100, 100), ["train.sharding"]),
        ("fsdp2", (100, 0), ["train.sharding"]),
        ("fsdp2", (30, 30), ["train.sharding"]),
    ],
)
def test_shards_are_as_large_as_the_strategy_says(
    strategy: str, here: tuple[int, int], found: list[str]
) -> None:
    starts = tuple(make_start(rank, parameters_here=here[rank]) for rank in (0, 1))
    state = here if strategy == "fsdp2" and not found else (50, 50) if strategy == "fsdp2" else (100, 100)
    proofs = tuple(make_proof(rank, optimizer_state_here=state[rank]) for rank in (0, 1))
    measurement = make_measurement(strategy=strategy, starts=starts, proofs=proofs)
    assert codes(measurement) == found


def test_another_zero_stage_than_asked_for_is_found() -> None:
    starts = tuple(make_start(rank, stage=1) for rank in (0, 1))
    proofs = tuple(make_proof(rank, optimizer_state_here=50) for rank in (0, 1))
    assert codes(make_measurement(strategy="zero2", starts=starts, proofs=proofs)) == ["train.sharding"]
    assert codes(make_measurement(strategy="zero1", starts=starts, proofs=proofs)) == []


def test_a_rank_with_another_start_is_named_and_explains_the_rest() -> None:
    other = make_start(1, parameters=tensors("other", 1.0), buffers=(TensorFact("shift", "x"),))
    steps = tuple(
        replace(step, parameters=tensors(f"r{step.rank}", 0.5), gradient_error=0.4)
        for step in make_measurement().steps
    )
    measurement = make_measurement(starts=(make_start(0), other), steps=steps)
    assert (codes(measurement), rank_of(measurement)) == (["train.initial_parameters"], 1)


def test_buffers_that_drift_apart_are_found() -> None:
    measurement = with_steps({(1, 2): {"buffers": (TensorFact("shift", "x"),)}})
    assert codes(measurement) == ["train.buffers_differ"]


def test_a_gradient_that_nobody_averaged_is_told_from_one_that_is_wrong() -> None:
    alone = {"gradient_error": 0.6, "own_gradient_error": 1e-8}
    spoilt = with_steps(
        {
            (rank, 2): {
                **alone,
                "gradients": tensors(f"r{rank}", 0.3),
                "parameters": tensors(f"r{rank}", 0.1),
            }
            for rank in (0, 1)
        }
    )
    assert (codes(spoilt), step_of(spoilt)) == (["train.not_averaged"], 2)
    wrong = with_steps({(0, 1): {"gradient_error": 0.6, "gradients": tensors("w", 0.3)}})
    assert (codes(wrong), rank_of(wrong), step_of(wrong)) == (["train.gradient"], 0, 1)


def test_summed_gradients_are_told_by_their_scale() -> None:
    summed = both(0, gradient_error=1.0, gradient_scale=2.0, gradients=tensors("s", 0.4))
    assert (codes(summed), step_of(summed)) == (["train.gradients_summed"], 0)
    between = both(0, gradient_error=0.5, gradient_scale=1.5, gradients=tensors("s", 0.2))
    assert codes(between) == ["train.gradient"]


def test_one_tensor_left_out_is_named() -> None:
    change = {
        (rank, 0): {
            "gradients": tuple(
                TensorFact(fact.name, f"r{rank}", 0.1) if fact.name == "1.bias" else fact
                for fact in tensors("g0")
            ),
            "gradient_error": 0.1,
        }
        for rank in (0, 1)
    }
    measurement = with_steps(change)
    assert codes(measurement) == ["train.tensor_not_averaged"]
    assert "1.bias" in judge_training(measurement)[0].message


def test_a_deviation_within_rounding_is_not_a_finding() -> None:
    assert codes(both(0, gradient_error=9e-6)) == []
    assert codes(both(0, gradient_error=2e-5, gradients=tensors("g", 2e-5))) == ["train.gradient"]


def test_half_precision_is_only_judged_strictly_in_the_first_step() -> None:
    noisy = both(1, gradient_error=0.05, gradients=tensors("n", 0.05))
    assert codes(noisy) == ["train.gradient"]
    assert codes(replace(noisy, dtype="bfloat16")) == []


def test_parameters_that_differ_between_ranks_name_the_one_that_left() -> None:
    measurement = with_steps({(1, 3): {"parameters": tensors("x", 0.2), "parameter_error": 0.2}})
    assert (codes(measurement), rank_of(measurement)) == (["train.ranks_differ"], 1)
    clipped = both(0, parameters=tensors("c", 0.02), parameter_error=0.02)
    assert codes(clipped) == ["train.parameters"]


def test_the_rank_whose_loss_is_not_finite_is_named_and_nothing_else_is_told() -> None:
    spoilt = {(rank, step): {"gradient_error": None} for rank in (0, 1) for step in (2, 3)}
    spoilt[1, 2] = {"loss": None, "gradient_error": None}
    measurement = with_steps(spoilt)
    assert (codes(measurement), rank_of(measurement), step_of(measurement)) == (["train.not_finite"], 1, 2)


def test_a_step_that_the_loss_scaler_left_out_is_no_fault() -> None:
    assert codes(both(0, gradient_error=None, skipped=True, gradients=())) == []


def test_a_rank_that_runs_out_of_data_is_named() -> None:
    measurement = make_measurement(
        steps=tuple(step for step in make_measurement().steps if step.step == 0),
        epoch_ends=(RankEpochEnd(0, 0, 2, False), RankEpochEnd(1, 0, 1, False)),
        proofs=(),
        speeds=(),
    )
    assert (codes(measurement), rank_of(measurement)) == (["train.uneven_steps"], 1)


def test_a_checkpoint_and_a_repeat_must_give_the_same_bits() -> None:
    spoilt = make_measurement(proofs=(make_proof(0), make_proof(1, checkpoint_identical=False)))
    assert (codes(spoilt), rank_of(spoilt)) == (["train.checkpoint"], 1)
    other = make_measurement(proofs=(make_proof(0, repeat_identical=False), make_proof(1)))
    assert codes(other) == ["train.not_deterministic"]
    assert training_outcome(judge_training(other)) is Outcome.WARN


@pytest.mark.parametrize(
    ("late", "data", "cause"), [(0.05, 0.001, "host late"), (0.05, 0.049, "data late"), (0.003, 0.001, None)]
)
def test_a_straggler_is_named_with_what_makes_it_late(late: float, data: float, cause: str | None) -> None:
    slow = make_speed(1, own_seconds_p50=late, data_seconds=data, step_seconds=(0.06,) * STEPS)
    measurement = make_measurement(speeds=(make_speed(0, step_seconds=(0.06,) * STEPS), slow))
    if cause is None:
        assert codes(measurement) == []
        return
    assert (codes(measurement), rank_of(measurement)) == (["train.straggler"], 1)
    assert {fact.value for fact in judge_training(measurement)[0].evidence} >= {cause}


def incident(kind: IncidentKind, stage: str, *facts: Evidence) -> Incident:
    return Incident(kind, 1, "a1", stage, 2.0, facts)


def test_a_rank_that_ran_out_of_memory_is_told_as_such() -> None:
    raised = incident(IncidentKind.RAISED, "verify", Evidence("exception", "MemoryError"))
    measurement = make_measurement(incidents=(raised,), proofs=(), speeds=())
    assert (codes(measurement), rank_of(measurement)) == (["train.out_of_memory"], 1)


def test_missing_steps_never_pass() -> None:
    cut = make_measurement(steps=make_measurement().steps[:-1])
    assert codes(cut) == ["train.incomplete"]
    assert codes(replace(cut, timed_out=True)) == ["train.timed_out"]
    assert training_outcome(judge_training(cut)) is Outcome.ERROR
    nothing = make_measurement(starts=(), steps=(), epoch_ends=(), proofs=(), speeds=())
    assert codes(nothing) == ["train.incomplete"]


def test_a_fault_that_never_fired_is_an_error() -> None:
    measurement = make_measurement(injected=(InjectedFault("nosync:3", fired=False),))
    assert codes(measurement) == ["inject.not_fired"]
