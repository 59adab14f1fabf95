"""The recipe of `gpudiag train`: place the ranks, train by each strategy, compare with one process."""

import os
import platform
import socket
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from gpudiag.checks.training.strategy import judge_training
from gpudiag.checks.training.verifications import is_verified, list_verifications
from gpudiag.errors import LaunchError, UsageError
from gpudiag.model.codec import decode, encode
from gpudiag.model.evidence import Evidence
from gpudiag.model.finding import Outcome, outcome_of_findings, worst, worst_first
from gpudiag.model.measure import Incident, IncidentKind, InjectedFault
from gpudiag.model.number_ranges import number_ranges
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason, Reading
from gpudiag.model.run import RunEvent
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
    TrainingReport,
)
from gpudiag.ranks.agents.fork_server import ForkServer
from gpudiag.ranks.agents.launch import TORCH, run_ranks
from gpudiag.ranks.diagnosis.view import ViewListener
from gpudiag.ranks.environment import RankEnvironment
from gpudiag.ranks.inject import Fault
from gpudiag.ranks.launchers import Launcher
from gpudiag.ranks.rank_run import RankRun
from gpudiag.ranks.stages import DEFAULT_STAGE_SECONDS, IMPORT, RENDEZVOUS, Budgets
from gpudiag.reference.training import StrategyFacts, strategy_facts
from gpudiag.runs.events import TrainingEvents
from gpudiag.runs.fork_servers import TRAINING_MODULES, ForkServers
from gpudiag.runs.interpreters import absent_modules, lack_on_cpu, lack_on_gpus, require_torch
from gpudiag.runs.placement import Placement, RanksWanted, place_ranks, why_unmet
from gpudiag.runs.rank_report import fit_to_place
from gpudiag.training.advise import DEFAULT_PARAMETERS, advise_for_devices
from gpudiag.training.faults import BADINIT, GRADIENT_FAULTS, NAN, parse_training_fault
from gpudiag.training.training_job import TrainingFault, TrainingJob

_ENTRY = "gpudiag.training.rank_main:run"
_MIRRORED_ENTRY = "gpudiag.training.mirrored_main:run"
_PRELOAD = (*TORCH, *TRAINING_MODULES)
# What each rank of a framework would import by itself, even late in its start. On CPUs only: if the import
# asked for GPUs, CUDA would be initialized in the process that is forked. Each rank initializes them itself.
_TRY_PRELOAD = MappingProxyType(
    {
        "deepspeed": (
            "deepspeed",
            "deepspeed.module_inject.auto_ep_layer",
            "deepspeed.runtime.zero.muon.muon_optimizer",
            "deepspeed.ops.triton_ops",
            "torch._dynamo.debug_utils",
        ),
        "accelerate": ("accelerate", "accelerate.state", "accelerate.utils"),
        "horovod": ("horovod.torch",),
    }
)
_PRELOAD_FSDP2 = ("gpudiag.training.strategies.fsdp2",)  # with torch's sharding and its checkpoints
# TensorFlow has no reading of integers or images here; see training/mirrored_main.py.
_MIRRORED_WORKLOADS = ("regression", "classification")

_TYPES: dict[str, type] = {
    "start": RankStart,
    "step": RankStep,
    "late_step": RankStep,
    "epoch_end": RankEpochEnd,
    "proof": RankProof,
    "speed": RankSpeed,
}


def build_measurement(run: RankRun, job: TrainingJob, device_kind: str) -> StrategyMeasurement:
    """All that the ranks of one run reported, as the model's `StrategyMeasurement`."""
    reported: dict[str, list[Any]] = {kind: [] for kind in _TYPES}
    fired: dict[str, float] = {}
    for event in run.events:
        kind = event.data.get("kind")
        if kind in _TYPES:
            reported[kind].append(decode(_TYPES[kind], event.data))
        elif kind == "fault":
            fired.setdefault(event.data["specification"], event.at_seconds)
    faults = tuple(
        InjectedFault(
            fault.specification, fault.specification in fired, fired.get(fault.specification, NOT_ASKED)
        )
        for fault in job.faults
    )
    return StrategyMeasurement(
        **replace(run, world_size=job.workers, injected=(*run.injected, *faults)).of_ranks(),
        strategy=job.strategy,
        workload=job.workload,
        dtype=job.dtype,
        optimizer=job.optimizer,
        backend=job.backend,
        device_kind=device_kind,
        steps_planned=job.steps,
        starts=tuple(sorted(reported["start"], key=lambda start: start.rank)),
        steps=tuple(reported["step"]),
        epoch_ends=tuple(reported["epoch_end"]),
        proofs=tuple(reported["proof"]),
        speeds=tuple(sorted(reported["speed"], key=lambda speed: speed.rank)),
        timed_out=run.timed_out,
        late_steps=tuple(reported["late_step"]),
        lateness=run.lateness,
    )


def build_result(measurement: StrategyMeasurement, placement: Placement) -> StrategyResult:
    """The result of one strategy's run, judged, as the report over all strategies shows it.

    One worker alone is worth a note here: the user asked for several.
    """
    facts = strategy_facts()[measurement.strategy]
    findings = fit_to_place(judge_training(measurement), placement)
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
        lateness=measurement.lateness,
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
    """The mean over ranks; a step's time beyond that of the plain step is communication."""
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


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """The result of a run; `reporter`: this process of the launch is the one that reports to the user."""

    report: TrainingReport
    reporter: bool


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the ranks of every strategy run."""

    environment: RankEnvironment | None
    placement: Placement
    world_size: int
    pythons: Mapping[str, str]
    servers: ForkServers | None = None
    emitter: TrainingEvents = field(default_factory=lambda: TrainingEvents(0, None))
    notice: Callable[[str], None] | None = None
    on_views: ViewListener | None = None

    def python_for(self, facts: StrategyFacts) -> str | None:
        """The interpreter of a strategy's ranks; None for this one."""
        return self.pythons.get(facts.framework, self.pythons.get(""))

    def server_for(self, facts: StrategyFacts, *, more: bool) -> ForkServer | None:
        """What forks the template of a strategy's ranks; None: it imports itself. `more`: others follow."""
        if self.servers is None or facts.name == "mirrored":  # the ranks of that one are without torch
            return None
        return self.servers.server(self.python_for(facts), start=more)

    @property
    def device_kind(self) -> str:
        """The kind of device that ranks work on."""
        return "cuda" if self.placement.backend == "nccl" else "cpu"


def run_training(
    plan: TrainingPlan,
    environment: RankEnvironment | None = None,
    *,
    pythons: Mapping[str, str] | None = None,
    here: Placement | None = None,
    listener: Callable[[RunEvent], None] | None = None,
    notice: Callable[[str], None] | None = None,
) -> TrainingRun:
    """Run every strategy of the plan on its ranks, one after the other; return the report.

    `pythons` are the interpreters of ranks by framework, and under "" that of all others. `here` is
    where they run, for a caller that has looked at this machine already. `listener` gets
    stages, results and findings as they happen, in rank 0's process only. `notice` gets a sentence while
    ranks are waited for.

    Raises:
        UsageError: the plan contradicts itself or the launch.
        SourceError: GPUs are wanted, and cannot be used.
    """
    pythons = pythons or {}
    if not pythons and {strategy_facts()[name].framework for name in plan.strategy} == {"torch"}:
        require_torch("train")
    wanted = RanksWanted(plan.backend, plan.nproc, plan.deadline_seconds)
    with ForkServers() as servers:
        placement = here or place_ranks(
            wanted, environment, python=pythons.get(""), ask_torch=servers.ask_torch
        )
        reporter = environment is None or environment.rank == 0
        emitter = TrainingEvents(len(plan.strategy), listener if reporter else None)
        on_views = emitter.standings.add if reporter and listener is not None else None
        where = _Place(
            environment, placement, placement.world_size, pythons, servers, emitter, notice, on_views
        )
        return _run_strategies(plan, where, reporter=reporter)


def _run_strategies(plan: TrainingPlan, place: _Place, *, reporter: bool) -> TrainingRun:
    """The result of every strategy, each on its ranks; `reporter`: this process gets events."""
    environment, placement, emitter = place.environment, place.placement, place.emitter
    unmet = why_unmet(placement, one_machine=environment is None or environment.on_one_machine)
    if unmet is not None:
        refusal = _refuse(plan, replace(placement, findings=(unmet, *placement.findings)), place.world_size)
        emitter.emit_report(refusal)
        return TrainingRun(refusal, reporter)
    # Under a launcher, the last rank that led reports to the user: a leader that hangs is replaced.
    results = []
    for number, strategy in enumerate(plan.strategy):
        result, reporter = _run_strategy(plan, strategy, place, number, reporter)
        results.append(result)
        emitter.emit_result(result)
    hosts = 1 if environment is None else -(-place.world_size // environment.local_world_size)
    report = build_report(tuple(results), placement, hosts)
    emitter.emit_report(report)
    return TrainingRun(report, reporter)


def build_report(results: tuple[StrategyResult, ...], placement: Placement, hosts: int = 1) -> TrainingReport:
    """The report over all strategies: the worst verdict, all findings, and which strategy to choose."""
    findings = (*(finding for result in results for finding in result.findings), *placement.findings)
    ran = tuple(result.outcome for result in results if result.outcome is not Outcome.SKIP)
    outcome = worst((*ran, *(finding.outcome for finding in placement.findings))) if ran else Outcome.ERROR
    return TrainingReport(
        outcome=outcome,
        host=socket.gethostname(),
        strategies=results,
        findings=worst_first(findings),
        advice=advise_for_devices(DEFAULT_PARAMETERS, placement.devices, hosts) if len(results) > 1 else (),
        machine=describe_machine(placement),
        simulated=None if placement.snapshot is None else placement.snapshot.simulated,
    )


def _refuse(plan: TrainingPlan, placement: Placement, world_size: int) -> TrainingReport:
    """The report of a run that started no ranks, because of the first of the placement's findings."""
    reason = f"ranks cannot connect ({placement.findings[0].code})"
    results = (skipped_result(plan, name, world_size, Outcome.ERROR, reason, None) for name in plan.strategy)
    return build_report(tuple(results), placement)


def describe_machine(placement: Placement) -> tuple[str, ...]:
    """What a result was measured on, in words."""
    devices = [str(device.name) for device in placement.devices]
    cores = len(os.sched_getaffinity(0))
    gpus = [f"{len(devices)}x {devices[0]}"] if devices else ["no GPU"]
    simulated = None if placement.snapshot is None else placement.snapshot.simulated
    return (
        *([f"SIMULATED {simulated}, no real GPU was read"] if simulated else []),
        f"{platform.machine()}, {cores} cores",
        *gpus,
        f"Linux {platform.release()}",
        f"Python {platform.python_version()}",
    )


def _run_strategy(
    plan: TrainingPlan, strategy: str, place: _Place, number: int, reporter: bool
) -> tuple[StrategyResult, bool]:
    """One strategy's result, and whether this process reports it (`reporter` unchanged if nothing runs)."""
    facts = strategy_facts()[strategy]
    faults = tuple(parse_training_fault(text, place.world_size, plan.steps) for text in plan.inject)
    unable = _why_no_fault(plan, facts, faults)
    if unable is not None and len(plan.strategy) == 1:
        raise UsageError(unable[0], hint=unable[1] or "")
    unable = unable or _why_not(plan, facts, place)
    if unable is not None:
        return skipped_result(plan, strategy, place.world_size, Outcome.SKIP, *unable), reporter
    try:
        measurement, reporter = _measure(plan, facts, faults, place, number)
    except LaunchError as error:
        if len(plan.strategy) == 1:
            raise
        failed = skipped_result(
            plan, strategy, place.world_size, Outcome.ERROR, error.message, error.hint or None
        )
        return failed, True
    return build_result(measurement, place.placement), reporter


def measure_strategies(
    plan: TrainingPlan,
    here: Placement,
    *,
    python: str | None = None,
    servers: ForkServers | None = None,
    fresh_groups: bool = True,
    on_views: ViewListener | None = None,
) -> tuple[StrategyMeasurement, ...]:
    """What ranks reported under each strategy of the plan that can run `here`, without judgement.

    One of `servers` forks the ranks of all of them; `on_views` gets where they are. Without `fresh_groups`
    the ranks keep their first process group, if the strategy can. A strategy whose ranks could not be started
    costs the others nothing: that is what happened to it.

    Raises:
        LaunchError: ranks could not be started, under any strategy.
    """
    pythons = {} if python is None else {"": python}
    place = _Place(None, here, here.world_size, pythons, servers, on_views=on_views)
    able = [facts for name, facts in strategy_facts().items() if name in plan.strategy]
    able = [facts for facts in able if _why_not(plan, facts, place) is None]
    measured: list[StrategyMeasurement] = []
    failed: list[LaunchError] = []
    for number, facts in enumerate(able):
        job = _job_of(plan, facts, (), place, number, fresh_groups=fresh_groups)
        try:
            run = _run(plan, facts, job, place, ())
        except LaunchError as error:
            failed.append(error)
            run = _never_started(job, error)
        measured.append(build_measurement(run, job, place.device_kind))
    if failed and len(failed) == len(able):
        raise failed[0]
    return tuple(measured)


def _never_started(job: TrainingJob, error: LaunchError) -> RankRun:
    """The run of ranks that could not be started: nothing but that."""
    host = socket.gethostname()
    source = "the process that starts the ranks"
    why = (
        Evidence("ranks", number_ranges(range(job.workers)), source=source),
        Evidence("not_forked", error.message, source=source),
    )
    incident = Incident(IncidentKind.START_FAILED, 0, host, IMPORT, 0.0, why)
    return RankRun(job.workers, Launcher.SPAWN, host, (), (incident,), injected=(), seconds=0.0)


def _measure(
    plan: TrainingPlan,
    facts: StrategyFacts,
    faults: tuple[TrainingFault | Fault, ...],
    place: _Place,
    number: int,
) -> tuple[StrategyMeasurement, bool]:
    """One strategy's measurement on its ranks, and whether this process reports it."""
    job = _job_of(plan, facts, faults, place, number)
    run = _run(plan, facts, job, place, tuple(fault for fault in faults if isinstance(fault, Fault)))
    return build_measurement(run, job, place.device_kind), run.reporter


def _job_of(
    plan: TrainingPlan,
    facts: StrategyFacts,
    faults: tuple[TrainingFault | Fault, ...],
    place: _Place,
    number: int,
    *,
    fresh_groups: bool = True,
) -> TrainingJob:
    """What each rank of that strategy is given."""
    return TrainingJob(
        strategy=facts.name,
        workload=plan.workload,
        backend=place.placement.backend,
        dtype=plan.dtype,
        optimizer=plan.optimizer,
        steps=plan.steps,
        batch_size=plan.batch_size,
        seed=plan.seed,
        workers=place.world_size,
        run=number,
        fresh_groups=fresh_groups,
        faults=tuple(fault for fault in faults if isinstance(fault, TrainingFault)),
    )


def _run(
    plan: TrainingPlan, facts: StrategyFacts, job: TrainingJob, place: _Place, faults: tuple[Fault, ...]
) -> RankRun:
    mirrored = facts.name == "mirrored"
    on_cpu = place.device_kind == "cpu"
    late = _TRY_PRELOAD.get(facts.framework, ()) if on_cpu else ()
    place.emitter.start_ranks()
    return run_ranks(
        _MIRRORED_ENTRY if mirrored else _ENTRY,
        run_id=f"train {job.run} {facts.name}",
        world_size=1 if facts.one_process else job.workers,
        arguments=encode(job),
        environment=place.environment,
        budgets=Budgets(
            stage_seconds={**DEFAULT_STAGE_SECONDS, RENDEZVOUS: plan.rendezvous_timeout_seconds},
            run_seconds=plan.timeout_seconds,
        ),
        faults=faults,
        on_event=place.emitter.add,
        on_views=place.on_views,
        notice=place.notice,
        python=place.python_for(facts),
        server=place.server_for(facts, more=len(plan.strategy) > 1),
        variables={**place.placement.variables, **({"DS_ACCELERATOR": "cpu"} if on_cpu else {})},
        preload=() if mirrored else _PRELOAD,
        try_preload=(*late, *(_PRELOAD_FSDP2 if facts.name == "fsdp2" else ())),
    )


def _why_no_fault(
    plan: TrainingPlan, facts: StrategyFacts, faults: tuple[TrainingFault | Fault, ...]
) -> tuple[str, str | None] | None:
    """Why one of these faults cannot be injected into that strategy, and what can; None if all can."""
    instead = "inject it into ddp, fsdp2, horovod or accelerate"
    for fault in faults:
        if not isinstance(fault, TrainingFault):
            continue
        what = f"--inject {fault.specification} cannot be applied to {facts.name}"
        in_gradients = fault.kind in GRADIENT_FAULTS or fault.kind == BADINIT
        if facts.framework == "deepspeed" and in_gradients:
            return f"{what}: its engine keeps the gradients", instead
        if facts.one_process:
            return f"{what}: one process drives all workers", instead
        if fault.kind == NAN and plan.workload == "transformer":
            words = f"--inject {fault.specification}: the samples of the transformer are tokens, never NaN"
            return words, "choose --workload regression"
    return None


def _why_not(plan: TrainingPlan, facts: StrategyFacts, place: _Place) -> tuple[str, str | None] | None:
    """Why a strategy cannot run here, and the command that helps; None if it can."""
    if facts.name == "data-parallel" and min(len(place.placement.devices), place.world_size) < 2:
        return "it needs at least two GPUs; on one it only calls the model and averages nothing", None
    if facts.one_process and place.environment is not None:
        return "one process drives all its workers: start it without a launcher", None
    if facts.name == "mirrored" and plan.workload not in _MIRRORED_WORKLOADS:
        return f"workload {plan.workload} has no TensorFlow model in gpudiag", "--workload regression"
    if facts.name == "mirrored" and plan.dtype != "float32":
        return f"{plan.dtype} is not tested with TensorFlow by gpudiag", "--dtype float32"
    if facts.name == "accelerate" and plan.dtype == "float16" and place.device_kind == "cpu":
        return "Accelerate scales float16 on GPUs only", "--dtype bfloat16"
    python = place.python_for(facts)
    absent = absent_modules(facts.modules, python)
    if absent:
        where = f" for {python}" if python else ""
        return f"{absent[0]} is not installed{where}", facts.install_command(absent[0], python)
    if place.device_kind == "cuda":
        return lack_on_gpus(facts.framework, python)
    return lack_on_cpu(facts.name, python)
