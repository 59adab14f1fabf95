"""Cases of the checks of training: each fault under DDP, and under a strategy that shards."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from gpudiag.model.measure import Incident, IncidentKind
from gpudiag.model.report import Measures
from gpudiag.model.training import RankEpochEnd, StrategyMeasurement, TensorFact
from tests.scenarios.rank_cases import DIED, DIED_AT_THE_END, happened, rank_cases
from tests.scenarios.situations import Case, Situation, case, now
from tests.unit.training.measurements import (
    BATCH,
    RANKS,
    STEPS,
    TENSORS,
    make_measurement,
    make_parts,
    make_proof,
    make_speed,
    make_start,
    make_step,
    make_step_parts,
    tensors,
    with_steps,
)

SOUND = make_measurement()
PAIR = ((0.5, 0.5, 0.0, 0.0), (0.0, 0.0, 0.5, 0.5))
OTHER_BUFFER = (TensorFact("shift", "x"),)


def run(**values: Any) -> StrategyMeasurement:
    """A run in which that is otherwise."""
    return make_measurement(**values)


def starts(**values: Any) -> StrategyMeasurement:
    """A run whose rank 1 began otherwise."""
    return run(starts=(make_start(0), make_start(1, **values)))


def both(**values: Any) -> StrategyMeasurement:
    """A run in which every step is otherwise on every rank."""
    return with_steps({(rank, step): values for rank in range(RANKS) for step in range(STEPS)})


def one(**values: Any) -> StrategyMeasurement:
    """A run in which one step is otherwise on rank 1."""
    return with_steps({(1, 1): values})


def apart(**values: Any) -> StrategyMeasurement:
    """A run in which one step has gradients of their own on each rank."""
    return with_steps({(rank, 1): {**values, "gradients": tensors(f"r{rank}", 0.3)} for rank in range(RANKS)})


def parts(**values: Any) -> StrategyMeasurement:
    """A run in which every gradient is wrong from the second step on, and made of that."""
    made = replace(make_parts(), **values)
    return with_steps(
        {(rank, step): {**WRONG, "gradient_parts": made} for rank in range(RANKS) for step in range(1, STEPS)}
    )


def moved(**values: Any) -> StrategyMeasurement:
    """A run in which every step of the optimizer is wrong, and made of that."""
    return both(
        parameters=tensors("m", 0.02), parameter_error=0.02, step_parts=replace(make_step_parts(), **values)
    )


def one_tensor(error: float) -> StrategyMeasurement:
    """A run in which one tensor's gradient differs between the ranks."""
    facts = {
        rank: tuple(
            TensorFact(fact.name, f"r{rank}" if error else fact.digest, error)
            if fact.name == "1.bias"
            else fact
            for fact in tensors("g0")
        )
        for rank in range(RANKS)
    }
    return with_steps(
        {(rank, 0): {"gradients": facts[rank], "gradient_error": error} for rank in range(RANKS)}
    )


def second_epoch_as_the_first(*ranks: int) -> StrategyMeasurement:
    return with_steps(
        {(rank, step): {"samples": make_step(rank, step - 2).samples} for rank in ranks for step in (2, 3)}
    )


def ends(steps: int) -> StrategyMeasurement:
    """A run in which rank 1 had data for so many steps of the first epoch, and others for two."""
    whole = steps == STEPS // 2
    return run(
        steps=tuple(step for step in SOUND.steps if whole or step.step < steps),
        epoch_ends=tuple(RankEpochEnd(rank, 0, steps if rank else 2, whole) for rank in range(RANKS)),
        **({} if whole else {"proofs": (), "speeds": ()}),
    )


def proofs(**values: Any) -> StrategyMeasurement:
    return run(proofs=tuple(make_proof(rank, **values) for rank in range(RANKS)))


def late(seconds: float) -> StrategyMeasurement:
    """A run in which rank 1 keeps the others waiting for so long in every step."""
    pace = {"step_seconds": (0.06,) * STEPS}
    return run(speeds=(make_speed(0, **pace), make_speed(1, own_seconds_p50=seconds, **pace)))


def ended(incident: Incident, *, complete: bool = False) -> StrategyMeasurement:
    return run(incidents=(incident,), **({} if complete else {"proofs": (), "speeds": ()}))


WRONG = {"gradient_error": 0.6, "gradients": tensors("w", 0.3)}
MANY_OFF = make_step_parts()
# Four ranks, of which two and two average among themselves.
IN_PAIRS = run(
    world_size=4,
    starts=tuple(make_start(rank, world_size=4, workers=4, sample_count=8) for rank in range(4)),
    steps=tuple(
        make_step(
            rank,
            step,
            samples=(4 * (step % 2) + rank,),
            **WRONG,
            gradient_parts=replace(make_parts(), shares=PAIR[rank // 2]),
        )
        for rank in range(4)
        for step in range(STEPS)
    ),
    proofs=(),
)
NO_MEMORY = happened(IncidentKind.RAISED, "exception", "OutOfMemoryError")
WRONG_VALUE = happened(IncidentKind.RAISED, "exception", "ValueError")
CUT = {"steps": SOUND.steps[:-1]}
ALONE = {"gradient_error": 0.6, "own_gradient_error": 1e-8}

_CASES = (
    ("train.not_parallel", starts(workers=1), starts(framework="torch 2.4.0")),
    (
        "train.sharding",
        run(starts=tuple(make_start(rank, parameters_here=40) for rank in range(RANKS))),
        SOUND,
    ),
    ("train.initial_parameters", starts(parameters=tensors("other", 1.0)), starts(buffers=OTHER_BUFFER)),
    (
        "train.buffers_differ",
        starts(buffers=OTHER_BUFFER),
        starts(parameters=tensors("other", 1.0), buffers=OTHER_BUFFER),
    ),
    ("train.not_averaged", apart(**ALONE), apart(gradient_error=0.6)),
    ("train.tensor_not_averaged", one_tensor(0.1), one_tensor(0.0)),
    (
        "train.gradients_summed",
        both(gradient_error=1.0, gradient_scale=2.0, gradients=tensors("s", 0.4)),
        both(gradient_error=0.5, gradient_scale=1.5, gradients=tensors("s", 0.2)),
    ),
    ("train.gradients_scaled", parts(shares=(0.25, 0.25)), parts(shares=(1.0, 1.0))),
    ("train.gradients_late", parts(step_before=1e-8), parts(rest=0.4)),
    ("train.gradients_accumulated", parts(accumulated=1e-8), parts(rest=0.4)),
    ("train.averaged_in_groups", IN_PAIRS, parts(shares=(0.25, 0.25))),
    ("train.ranks_weighed", parts(shares=(0.5, 0.55)), parts(shares=(0.25, 0.25))),
    ("train.tensor_not_stepped", moved(unmoved=("1.bias",), tensors=("1.bias",)), moved(unmoved=TENSORS)),
    ("train.other_samples", one(changed=("targets",)), SOUND),
    ("train.rank_corrupt", one(gradient_error=0.6, gradients=tensors("w", 0.3)), both(gradient_error=0.6)),
    ("train.gradient", both(gradient_error=0.6, gradients=tensors("w", 0.3)), both(gradient_error=9e-6)),
    (
        "train.parameters",
        both(parameters=tensors("c", 0.02), parameter_error=0.02),
        both(parameters=tensors("c", 9e-6), parameter_error=9e-6),
    ),
    (
        "train.ranks_differ",
        one(parameters=tensors("x", 0.2), parameter_error=0.2, step_parts=MANY_OFF),
        both(parameters=tensors("x", 0.2), parameter_error=0.2),
    ),
    ("train.loss", one(loss=2.7), both(loss=2.0)),
    ("train.loss_not_falling", proofs(loss_after=2.0), proofs(loss_after=1.999)),
    ("train.parameters_unmoved", proofs(moved=False, loss_after=2.0), proofs(loss_after=2.0)),
    (
        "train.same_samples",
        with_steps({(1, step): {"samples": make_step(0, step).samples} for step in range(STEPS)}),
        second_epoch_as_the_first(0, 1),
    ),
    (
        "train.samples_left_out",
        with_steps({(0, 0): {"samples": (0, 0, *range(2, BATCH))}}),
        with_steps({(0, 0): {"samples": tuple(reversed(range(BATCH)))}}),
    ),
    ("train.order_repeats", second_epoch_as_the_first(0, 1), second_epoch_as_the_first(0)),
    ("train.uneven_steps", ends(1), ends(2)),
    (
        "train.not_finite",
        one(loss=None, gradient_error=None),
        both(gradient_error=None, skipped=True, gradients=()),
    ),
    ("train.unused_parameters", one(unused=("9.weight",)), SOUND),
    (
        "train.checkpoint",
        proofs(checkpoint_identical=False),
        proofs(checkpoint_error=1e-7, tolerance_order=4e-4),
    ),
    ("train.not_deterministic", proofs(repeat_identical=False), proofs(checkpoint_identical=False)),
    ("train.out_of_memory", ended(NO_MEMORY), ended(WRONG_VALUE)),
    ("train.straggler", late(0.05), late(0.012)),
    ("train.teardown", ended(DIED_AT_THE_END, complete=True), ended(DIED_AT_THE_END)),
    ("train.incomplete", run(**CUT), run(**CUT, incidents=(DIED,))),
    ("train.timed_out", run(**CUT, timed_out=True), run(timed_out=True)),
)


def sharded(measurement: StrategyMeasurement) -> StrategyMeasurement:
    """The same under FSDP2, which splits parameters and the optimizer's state over two ranks."""
    return replace(
        measurement,
        strategy="fsdp2",
        starts=tuple(
            replace(start, parameters_here=start.parameters_here // measurement.world_size)
            for start in measurement.starts
        ),
        proofs=tuple(
            replace(proof, optimizer_state_here=proof.optimizer_state_here // RANKS)
            for proof in measurement.proofs
        ),
    )


def under_ddp(measurement: StrategyMeasurement) -> Situation:
    """That run under DDP, and nothing wrong with the other strategy."""
    return now(measured=lambda snapshot: Measures(training=(measurement, sharded(SOUND))))


def under_fsdp2(measurement: StrategyMeasurement) -> Situation:
    """That run under FSDP2, and nothing wrong under DDP."""
    return now(measured=lambda snapshot: Measures(training=(SOUND, sharded(measurement))))


def with_incidents(incidents: tuple[Incident, ...], complete: bool) -> StrategyMeasurement:
    return run(incidents=incidents, **({} if complete else CUT))


# Told by other names in training.
_RENAMED = ("rank.late", "rank.teardown")


def _training_cases() -> Iterator[Case]:
    for check, under in (("train.ddp", under_ddp), ("train.strategies", under_fsdp2)):
        yield from (case(check, code)(under(fires), under(near)) for code, fires, near in _CASES)
        yield from rank_cases(
            check,
            lambda incidents, complete, under=under: under(with_incidents(incidents, complete)),
            without=_RENAMED,
        )


TRAINING_CASES = tuple(_training_cases())
