"""Training measurements for tests: a sound one of two ranks, and its parts to be spoilt."""

from dataclasses import replace
from typing import Any

from gpudiag.model.measure import RankReport
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.model.training import (
    GradientParts,
    RankEpochEnd,
    RankProof,
    RankSpeed,
    RankStart,
    RankStep,
    StepParts,
    StrategyMeasurement,
    TensorFact,
)

STEPS, BATCH, RANKS = 4, 6, 2
TENSORS = ("0.weight", "0.bias", "1.weight", "1.bias", "2.weight")
CPU = Missing(MissingReason.NOT_SUPPORTED, "CPU")


def tensors(digest: str = "d", error: float | None = 1e-8) -> tuple[TensorFact, ...]:
    return tuple(TensorFact(name, digest, error) for name in TENSORS)


def make_start(rank: int, **values: Any) -> RankStart:
    sound = RankStart(
        rank=rank,
        world_size=RANKS,
        workers=RANKS,
        framework="torch 2.13.0",
        device="cpu",
        device_uuid=CPU,
        parameters=tensors("start", 0.0),
        buffers=(TensorFact("shift", "b"),),
        parameters_total=100,
        parameters_here=100,
        steps_per_epoch=STEPS // 2,
        sample_count=STEPS // 2 * BATCH * RANKS,
        tolerance_gradient=1e-5,
        tolerance_parameter=1e-5,
    )
    return replace(sound, **values)


def make_step(rank: int, step: int, **values: Any) -> RankStep:
    epoch = step // (STEPS // 2)
    first = (step % (STEPS // 2) * RANKS + rank) * BATCH
    samples = range(first, first + BATCH)
    sound = RankStep(
        rank=rank,
        step=step,
        epoch=epoch,
        samples=tuple(samples if epoch == 0 else reversed(samples)),
        loss=1.5 + rank,
        reference_loss=2.0,
        gradients=tensors(f"g{step}"),
        gradient_error=1e-8,
        gradient_scale=1.0,
        own_gradient_error=0.5,
        parameters=tensors(f"p{step}"),
        parameter_error=1e-8,
        buffers=(TensorFact("shift", "b"),),
    )
    return replace(sound, **values)


def make_parts(**values: Any) -> GradientParts:
    """What a gradient is made of that is the average of two ranks, unless `values` say otherwise."""
    right = GradientParts(TENSORS, (0.5, 0.5), 1e-8, 0.7, 0.7, 90, 100)
    return replace(right, **values)


def make_step_parts(**values: Any) -> StepParts:
    """What a step is made of that nothing explains, unless `values` say otherwise."""
    return replace(StepParts(TENSORS, (), 0.5, 0.0, 0.6, 0.7, 90, 100), **values)


def make_proof(rank: int, **values: Any) -> RankProof:
    sound = RankProof(
        rank=rank,
        loss_before=2.0,
        loss_after=1.0,
        moved=True,
        optimizer_state_here=100,
        optimizer_state_whole=100,
        checkpoint_identical=True,
        repeat_identical=True,
    )
    return replace(sound, **values)


def make_speed(rank: int, **values: Any) -> RankSpeed:
    sound = RankSpeed(
        rank=rank,
        steps=STEPS,
        samples=BATCH,
        step_seconds=(0.01,) * STEPS,
        data_seconds=0.001,
        forward_seconds=0.003,
        backward_seconds=0.005,
        optimizer_seconds=0.001,
        own_seconds_p50=0.001,
        plain_seconds=0.006,
        alone_samples_per_second=1000.0 if rank == 0 else None,
        host_memory_bytes=1 << 28,
        device_memory_bytes=CPU,
    )
    return replace(sound, **values)


def make_measurement(**values: Any) -> StrategyMeasurement:
    """A ddp run of two ranks that went as planned, unless `values` say otherwise."""
    ranks = range(RANKS)
    sound = StrategyMeasurement(
        strategy="ddp",
        workload="regression",
        dtype="float32",
        optimizer="sgd",
        backend="gloo",
        device_kind="cpu",
        world_size=RANKS,
        launcher="spawn",
        host="a1",
        steps_planned=STEPS,
        starts=tuple(make_start(rank) for rank in ranks),
        steps=tuple(make_step(rank, step) for rank in ranks for step in range(STEPS)),
        epoch_ends=tuple(RankEpochEnd(rank, epoch, STEPS // 2, True) for rank in ranks for epoch in range(2)),
        proofs=tuple(make_proof(rank) for rank in ranks),
        speeds=tuple(make_speed(rank) for rank in ranks),
        ranks=tuple(RankReport(rank, rank, "a1", 100 + rank, "teardown", 0) for rank in ranks),
        incidents=(),
        injected=(),
        seconds=3.0,
    )
    return replace(sound, **values)


def with_steps(change: dict[tuple[int, int], dict[str, Any]]) -> StrategyMeasurement:
    """The sound measurement with some (rank, step) changed."""
    measurement = make_measurement()
    steps = tuple(replace(step, **change.get((step.rank, step.step), {})) for step in measurement.steps)
    return replace(measurement, steps=steps)
