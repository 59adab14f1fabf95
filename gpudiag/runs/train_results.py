"""From what the ranks of a training told to the result of a strategy."""

import statistics
from collections.abc import Sequence
from typing import Any

from gpudiag.checks.training import judge_training
from gpudiag.checks.training_verifications import is_verified, list_verifications
from gpudiag.model.codec import decode
from gpudiag.model.finding import Outcome, outcome_of_findings
from gpudiag.model.measure import InjectedFault
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason, Reading
from gpudiag.model.training import (
    RankEpochEnd,
    RankPace,
    RankProof,
    RankSpeed,
    RankStart,
    RankStep,
    StepShares,
    StrategyMeasurement,
    StrategyResult,
    TrainingPlan,
)
from gpudiag.ranks.run import RankRun
from gpudiag.reference.training import strategy_facts
from gpudiag.training.job import TrainingJob

_TYPES: dict[str, type] = {
    "start": RankStart,
    "step": RankStep,
    "late_step": RankStep,
    "epoch_end": RankEpochEnd,
    "proof": RankProof,
    "speed": RankSpeed,
}


def build_measurement(run: RankRun, job: TrainingJob, device_kind: str) -> StrategyMeasurement:
    """Everything that the ranks of one run told, in the model's words."""
    told: dict[str, list[Any]] = {kind: [] for kind in _TYPES}
    fired: dict[str, float] = {}
    for event in run.events:
        kind = event.data.get("kind")
        if kind in _TYPES:
            told[kind].append(decode(_TYPES[kind], event.data))
        elif kind == "fault":
            fired.setdefault(event.data["specification"], event.at_seconds)
    faults = tuple(
        InjectedFault(
            fault.specification, fault.specification in fired, fired.get(fault.specification, NOT_ASKED)
        )
        for fault in job.faults
    )
    return StrategyMeasurement(
        strategy=job.strategy,
        workload=job.workload,
        dtype=job.dtype,
        optimizer=job.optimizer,
        backend=job.backend,
        device_kind=device_kind,
        world_size=job.workers,
        launcher=run.launcher,
        host=run.host,
        steps_planned=job.steps,
        starts=tuple(sorted(told["start"], key=lambda start: start.rank)),
        steps=tuple(told["step"]),
        epoch_ends=tuple(told["epoch_end"]),
        proofs=tuple(told["proof"]),
        speeds=tuple(sorted(told["speed"], key=lambda speed: speed.rank)),
        ranks=run.reports,
        incidents=run.incidents,
        injected=(*run.injected, *faults),
        seconds=run.seconds,
        timed_out=run.timed_out,
        late_steps=tuple(told["late_step"]),
    )


def build_result(measurement: StrategyMeasurement) -> StrategyResult:
    """The judged result of a measurement."""
    facts = strategy_facts()[measurement.strategy]
    findings = judge_training(measurement)
    verifications = list_verifications(measurement, findings)
    tellers = 1 if facts.one_voice else measurement.world_size
    speeds = measurement.speeds if len(measurement.speeds) == tellers else ()
    pace = _pace(speeds, measurement.world_size)
    return StrategyResult(
        strategy=measurement.strategy,
        kind=facts.kind,
        framework=measurement.starts[0].framework if measurement.starts else facts.framework,
        outcome=outcome_of_findings(findings),
        world_size=measurement.world_size,
        workload=measurement.workload,
        dtype=measurement.dtype,
        optimizer=measurement.optimizer,
        launcher=measurement.launcher,
        backend=measurement.backend,
        device_kind=measurement.device_kind,
        parameters=measurement.starts[0].parameters_total if measurement.starts else NOT_ASKED,
        steps=len({step.step for step in measurement.steps}),
        verified=is_verified(verifications) if verifications else NOT_ASKED,
        verifications=verifications,
        shares=_shares(speeds) if speeds else NOT_ASKED,
        host_memory_bytes=max((one.host_memory_bytes for one in speeds), default=NOT_ASKED),
        device_memory_bytes=_device_memory(speeds),
        code_needed=facts.code_needed,
        paces=tuple(_rank_pace(speed) for speed in speeds),
        ranks=measurement.ranks,
        incidents=measurement.incidents,
        injected=measurement.injected,
        findings=findings,
        seconds=measurement.seconds,
        **pace,
    )


def skipped_result(
    plan: TrainingPlan, strategy: str, world_size: int, outcome: Outcome, reason: str, hint: str | None
) -> StrategyResult:
    """A strategy that did not run, and why."""
    facts = strategy_facts()[strategy]
    return StrategyResult(
        strategy=strategy,
        kind=facts.kind,
        framework=facts.framework,
        outcome=outcome,
        world_size=world_size,
        workload=plan.workload,
        dtype=plan.dtype,
        optimizer=plan.optimizer,
        reason=reason,
        hint=hint,
        code_needed=facts.code_needed,
    )


def _pace(speeds: Sequence[RankSpeed], workers: int) -> dict[str, Any]:
    """Samples per second, step times and scaling; a step is as long as on its slowest rank."""
    if not speeds:
        return {}
    slowest = [max(times) for times in zip(*(speed.step_seconds for speed in speeds), strict=True)]
    p50 = statistics.median(slowest)
    per_second = sum(speed.samples for speed in speeds) / p50
    alone = next(
        (one.alone_samples_per_second for one in speeds if one.alone_samples_per_second is not None), None
    )
    return {
        "samples_per_second": per_second,
        "step_p50_seconds": p50,
        "step_p99_seconds": _p99(slowest),
        "scaling_efficiency": NOT_ASKED if alone is None else per_second / (workers * alone),
    }


def _rank_pace(speed: RankSpeed) -> RankPace:
    return RankPace(
        rank=speed.rank,
        step_p50_seconds=statistics.median(speed.step_seconds),
        step_p99_seconds=_p99(speed.step_seconds),
        own_p50_seconds=speed.own_seconds_p50,
        host_memory_bytes=speed.host_memory_bytes,
        device_memory_bytes=speed.device_memory_bytes,
    )


def _p99(times: Sequence[float]) -> float:
    return sorted(times)[max(0, -(-len(times) * 99 // 100) - 1)]


def _shares(speeds: Sequence[RankSpeed]) -> Reading[StepShares]:
    """The mean over ranks; what a step's work takes longer than the plain step is communication."""
    data = statistics.fmean(speed.data_seconds for speed in speeds)
    plain = statistics.fmean(speed.plain_seconds for speed in speeds)
    parts = [
        [speed.forward_seconds for speed in speeds],
        [speed.backward_seconds for speed in speeds],
        [speed.optimizer_seconds for speed in speeds],
    ]
    known = [[value for value in part if value is not None] for part in parts]
    if any(len(part) < len(speeds) for part in known):
        return Missing(MissingReason.NOT_SUPPORTED, "one call of the framework does the whole step")
    forward, backward, optimizer = (statistics.fmean(part) for part in known)
    work = forward + backward + optimizer
    total = data + work
    communication = max(0.0, work - plain)
    left = (work - communication) / work / total
    return StepShares(
        data=data / total,
        forward=forward * left,
        backward=backward * left,
        optimizer=optimizer * left,
        communication=communication / total,
    )


def _device_memory(speeds: Sequence[RankSpeed]) -> Reading[int]:
    found = [speed.device_memory_bytes for speed in speeds]
    known = [size for size in found if not isinstance(size, Missing)]
    return max(known) if known else (found[0] if found else NOT_ASKED)
