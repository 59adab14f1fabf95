"""What is found in a training, and what is not: each fault by its code and subject, and its near misses."""

from dataclasses import replace
from typing import Any

import pytest

from gpudiag.checks.training.strategy import judge_training
from gpudiag.checks.training.verifications import is_verified, list_verifications
from gpudiag.model.evidence import Evidence, RankSubject
from gpudiag.model.finding import Outcome, outcome_of_findings
from gpudiag.model.measure import Incident, IncidentKind, InjectedFault
from gpudiag.model.training import RankEpochEnd, StrategyMeasurement, TensorFact
from tests.unit.training.measurements import (
    BATCH,
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
    assert outcome_of_findings(()) is Outcome.PASS
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
    assert outcome_of_findings(judge_training(one)) is Outcome.WARN


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
    assert (codes(wrong), rank_of(wrong), step_of(wrong)) == (["train.rank_corrupt"], 0, 1)


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


@pytest.mark.parametrize("step", [0, 2])
def test_half_precision_is_judged_as_strictly_in_every_step(step: int) -> None:
    starts = tuple(make_start(rank, tolerance_gradient=0.025) for rank in (0, 1))
    noisy = replace(
        both(step, gradient_error=0.02, gradients=tensors("n", 0.02)),
        dtype="bfloat16",
        starts=starts,
    )
    assert codes(noisy) == []
    wrong = {"gradient_error": 0.03, "gradients": tensors("n", 0.03)}
    assert codes(replace(both(step, **wrong), dtype="bfloat16", starts=starts)) == ["train.gradient"]


def test_what_goes_wrong_after_the_verified_steps_is_found_and_explains_the_proofs() -> None:
    late = [
        make_step(
            rank,
            8,
            own_gradient_error=1e-8 if rank else 0.5,
            gradient_error=0.4,
            parameters=tensors(f"r{rank}", 0.1),
        )
        for rank in (0, 1)
    ]
    measurement = make_measurement(
        late_steps=tuple(late),
        proofs=(make_proof(0, repeat_identical=False), make_proof(1, repeat_identical=False)),
    )
    assert (codes(measurement), rank_of(measurement), step_of(measurement)) == (["train.not_averaged"], 1, 8)
    sound = make_measurement(late_steps=(make_step(0, 8), make_step(1, 8)))
    assert codes(sound) == []
    proved = {one.name: one.passed for one in list_verifications(sound, ())}
    assert proved["after_timed_steps"] is True


@pytest.mark.parametrize(("kept", "found"), [(50, []), (100, ["train.sharding"])])
def test_gradients_that_are_said_to_be_sharded_are_counted(kept: int, found: list[str]) -> None:
    proofs = tuple(make_proof(rank, optimizer_state_here=50, gradients_here=kept) for rank in (0, 1))
    starts = tuple(make_start(rank, stage=2) for rank in (0, 1))
    assert codes(make_measurement(strategy="zero2", starts=starts, proofs=proofs)) == found
    whole = tuple(replace(start, stage=1) for start in starts)
    assert codes(make_measurement(strategy="zero1", starts=whole, proofs=proofs)) == []


def test_one_bucket_proves_nothing_of_the_second() -> None:
    for buckets, passed in ((3, True), (1, False)):
        proofs = tuple(make_proof(rank, buckets=buckets) for rank in (0, 1))
        proved = {one.name: one.passed for one in list_verifications(make_measurement(proofs=proofs), ())}
        assert (proved["several_buckets"] is True) == passed


def test_samples_that_no_rank_got_are_missed_from_the_data_set() -> None:
    halves = {
        (step.rank, step.step): {"samples": step.samples[: len(step.samples) // 2]}
        for step in make_measurement().steps
    }
    assert codes(with_steps(halves)) == ["train.samples_left_out"]
    short = make_measurement(
        steps=tuple(step for step in make_measurement().steps if step.step == 0),
        epoch_ends=tuple(RankEpochEnd(rank, 0, 1, agreed=False) for rank in (0, 1)),
        proofs=(),
        speeds=(),
    )
    assert codes(short) == ["train.samples_left_out"]


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


@pytest.mark.parametrize(
    ("error", "found"), [(1e-4, []), (2e-3, ["train.checkpoint"]), (None, ["train.checkpoint"])]
)
def test_steps_after_a_reload_may_add_up_in_another_order_and_no_more(
    error: float | None, found: list[str]
) -> None:
    after = make_proof(1, checkpoint_error=error, tolerance_order=4e-4)
    measurement = make_measurement(proofs=(make_proof(0), after))
    assert codes(measurement) == found


def test_what_a_checkpoint_lost_is_named() -> None:
    lost = ("optimizer.0.weight.momentum_buffer", "script.step")
    measurement = make_measurement(
        proofs=(make_proof(0, checkpoint_identical=False, checkpoint_lost=lost), make_proof(1))
    )
    (finding,) = judge_training(measurement)
    assert all(name in finding.message for name in lost)


@pytest.mark.parametrize(
    ("kept", "found"), [(100, []), (101, []), (99, ["train.sharding"]), (130, ["train.sharding"])]
)
def test_the_one_shard_of_one_rank_is_padded_as_several_would_be(kept: int, found: list[str]) -> None:
    measurement = make_measurement(
        strategy="zero2",
        world_size=1,
        starts=(make_start(0, world_size=1, workers=1, stage=2),),
        proofs=(make_proof(0, optimizer_state_here=kept),),
    )
    assert [code for code in codes(measurement) if code == "train.sharding"] == found


def test_a_checkpoint_and_a_repeat_must_give_the_same_bits() -> None:
    spoilt = make_measurement(proofs=(make_proof(0), make_proof(1, checkpoint_identical=False)))
    assert (codes(spoilt), rank_of(spoilt)) == (["train.checkpoint"], 1)
    other = make_measurement(proofs=(make_proof(0, repeat_identical=False), make_proof(1)))
    assert codes(other) == ["train.not_deterministic"]
    assert outcome_of_findings(judge_training(other)) is Outcome.WARN


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


@pytest.mark.parametrize(
    ("torch", "words"),
    [
        ("2.13.0+cpu", "torch 2.13.0+cpu crashes with it in DDP's constructor"),
        ("2.9.1", "torch 2.9.1 may crash"),
    ],
)
def test_a_crash_under_torchs_debugging_names_the_variable_and_the_version(torch: str, words: str) -> None:
    facts = {"signal": "SIGSEGV", "TORCH_DISTRIBUTED_DEBUG": "DETAIL", "torch_version": torch}
    died = [
        Incident(IncidentKind.DIED, rank, "a1", "init", 2.0, tuple(Evidence(*fact) for fact in facts.items()))
        for rank in (0, 1)
    ]
    nothing = {"starts": (), "steps": (), "epoch_ends": (), "proofs": (), "speeds": ()}
    (finding,) = judge_training(make_measurement(incidents=tuple(died), **nothing))
    assert finding.message.startswith("ddp: all 2 ranks were killed by SIGSEGV in stage init")
    assert f"TORCH_DISTRIBUTED_DEBUG is DETAIL, and {words}" in finding.message
    assert "unset" in finding.remedy
    other = replace(died[1], evidence=(Evidence("signal", "SIGSEGV"),))
    (plain,) = judge_training(make_measurement(incidents=(other,), **nothing))
    assert "DEBUG" not in plain.message


def test_missing_steps_never_pass() -> None:
    cut = make_measurement(steps=make_measurement().steps[:-1])
    assert codes(cut) == ["train.incomplete"]
    assert codes(replace(cut, timed_out=True)) == ["train.timed_out"]
    assert outcome_of_findings(judge_training(cut)) is Outcome.ERROR
    nothing = make_measurement(starts=(), steps=(), epoch_ends=(), proofs=(), speeds=())
    assert codes(nothing) == ["train.incomplete"]


def test_a_fault_that_never_fired_is_an_error() -> None:
    measurement = make_measurement(injected=(InjectedFault("nosync:3", fired=False),))
    assert codes(measurement) == ["inject.not_fired"]


def test_one_rank_that_tells_for_all_workers_is_a_whole_run_and_no_launcher_is_asked_for() -> None:
    read = {"sample_count": STEPS // 2 * BATCH}
    alone = {"starts": (make_start(0, **read),), "speeds": (), "proofs": (make_proof(0),)}
    sound = make_measurement()
    alone["steps"] = tuple(step for step in sound.steps if step.rank == 0)
    alone["epoch_ends"] = tuple(end for end in sound.epoch_ends if end.rank == 0)
    losses = {"loss": 2.0}
    alone["steps"] = tuple(replace(step, **losses) for step in alone["steps"])
    whole = make_measurement(strategy="data-parallel", **alone)
    assert codes(whole) == []
    idle = replace(whole, starts=(make_start(0, workers=1, **read),))
    finding = judge_training(idle)[0]
    assert finding.code == "train.not_parallel"
    assert "launcher" not in finding.remedy
