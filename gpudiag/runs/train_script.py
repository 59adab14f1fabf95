"""The recipe of `gpudiag train --script`: run the user's own script on ranks, watch it, say what the ranks did."""

import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpudiag.checks.collective import judge_injection
from gpudiag.checks.script_hang import HangLimits, judge_hang, judge_late
from gpudiag.checks.training_script import judge_script
from gpudiag.checks.training_script_proof import judge_proof
from gpudiag.errors import UsageError
from gpudiag.model.codec import decode, encode
from gpudiag.model.event import RunEvent
from gpudiag.model.finding import Finding, outcome_of_findings, worst_first
from gpudiag.model.plan import NcclTestPlan, require_between
from gpudiag.model.reading import Missing
from gpudiag.model.script import ScriptFacts, ScriptPlace
from gpudiag.model.training import ScriptResult, TrainingReport
from gpudiag.ranks.environment import RankEnvironment, read_environment
from gpudiag.ranks.inject import Fault, FaultKind, parse_fault
from gpudiag.ranks.launch import TORCH, run_ranks
from gpudiag.ranks.run import RankRun
from gpudiag.ranks.stages import STAGES, Budgets
from gpudiag.runs.interpreters import absent_modules
from gpudiag.runs.nccl_test import RankPlace
from gpudiag.runs.placement import Placement, place_ranks
from gpudiag.runs.script_output import show_output
from gpudiag.runs.script_watch import ELSEWHERE, ScriptWatch
from gpudiag.runs.train import DEFAULT_CPU_RANKS, describe_machine
from gpudiag.runs.train_events import TrainingTeller
from gpudiag.training.script_main import ScriptJob
from gpudiag.training.stack_watch import users_place

_ENTRY = "gpudiag.training.script_main:run"
# A script may compute for as long as it likes: only a rank that dies, or all of them standing still, ends it.
_NO_LIMIT_SECONDS = 365 * 24 * 3600.0
_MAX_HANG_SECONDS = 24 * 3600.0
_FAULTS = (FaultKind.KILL, FaultKind.STOP)


@dataclass(frozen=True, slots=True)
class ScriptPlan:
    """The script, its arguments, and how it is watched."""

    path: Path
    arguments: tuple[str, ...] = ()
    nproc: int | None = None
    backend: str = "auto"
    inject: tuple[str, ...] = ()
    timeout_seconds: float | None = None
    hang_seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class ScriptRun:
    """What came of it; `reporter`: this process of the launch is the one that tells the user."""

    report: TrainingReport
    reporter: bool


def run_script(
    plan: ScriptPlan,
    place: RankPlace | None = None,
    *,
    python: str | None = None,
    listener: Callable[[RunEvent], None] | None = None,
) -> ScriptRun:
    """The script on its ranks, and the report of what they did.

    `listener` is told of the start, the findings and the outcome, in rank 0's process only.

    Raises:
        UsageError: the plan, the flags and the launcher's variables contradict each other.
        SourceError: GPUs are wanted, and cannot be used.
        LaunchError: the ranks could not be started.
    """
    require_between(plan.hang_seconds, 1, _MAX_HANG_SECONDS, "--hang-after")
    flags = place or RankPlace()
    environment = read_environment(
        os.environ, rank=flags.rank, world_size=flags.world_size, init_method=flags.init_method
    )
    placement = place_ranks(NcclTestPlan(backend=plan.backend, nproc=plan.nproc), environment, python=python)
    decided = plan.nproc is not None or environment is not None or placement.backend == "nccl"
    world_size = placement.world_size if decided else DEFAULT_CPU_RANKS
    faults = tuple(_parse_fault(text, world_size) for text in plan.inject)
    teller = TrainingTeller(0, listener if environment is None or environment.rank == 0 else None)
    teller.start_ranks()
    run, words = _run(plan, environment, placement, world_size, faults, python)
    report = _report(plan, placement, run, words)
    teller.tell_report(report)
    return ScriptRun(report, run.reporter)


def _run(
    plan: ScriptPlan,
    environment: RankEnvironment | None,
    placement: Placement,
    world_size: int,
    faults: tuple[Fault, ...],
    python: str | None,
) -> tuple[RankRun, tuple[str, ...]]:
    """The run, and the lines of its output in which a library says what went wrong."""
    watch = ScriptWatch(world_size, plan.hang_seconds)
    with show_output() as output:
        job = ScriptJob(
            path=str(plan.path.resolve()),
            arguments=plan.arguments,
            output_pid=os.getpid(),
            output_descriptor=output.descriptor,
            master_port=_free_port(),
            hang_seconds=plan.hang_seconds,
        )
        run = run_ranks(
            _ENTRY,
            world_size=world_size,
            arguments=encode(job),
            environment=environment,
            budgets=Budgets(
                stage_seconds=dict.fromkeys(STAGES, _NO_LIMIT_SECONDS), run_seconds=plan.timeout_seconds
            ),
            faults=faults,
            on_event=watch.take,
            is_over=watch.is_over,
            python=python,
            variables=placement.variables,
            preload=() if absent_modules(("torch",), python) else TORCH,
            explanations=output.explanations,
        )
    return run, output.explanations()


def _parse_fault(text: str, world_size: int) -> Fault:
    fault = parse_fault(text, world_size)
    if fault.kind not in _FAULTS:
        raise UsageError(
            f"--inject {text} cannot be done to a script",
            hint="kill:1@5 and stop:1@5 can: the number is seconds",
        )
    return fault


def _free_port() -> int:
    """A port that nobody listens on; the script's rank 0 will, for env://."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _report(plan: ScriptPlan, placement: Placement, run: RankRun, words: Sequence[str]) -> TrainingReport:
    watch = _replay(plan, run)
    script = ScriptResult(
        script=str(plan.path),
        world_size=run.world_size,
        launcher=run.launcher,
        ranks=run.reports,
        incidents=run.incidents,
        group_world_sizes=tuple(watch.groups.get(rank, 0) for rank in range(run.world_size)),
        seconds=run.seconds,
    )
    finished = len(run.results) == run.world_size
    findings = judge_script(script, host=run.host, finished=finished, raised=watch.raised, words=words)
    if run.given_up:
        hosts = {report.rank: report.host for report in run.reports}
        limits = HangLimits(plan.hang_seconds, watch.patience_seconds)
        working = watch.working | _moving(run, watch, str(plan.path.resolve()))
        findings = (judge_hang(watch.still, working, sorted(watch.finished), hosts, limits),)
    elif run.timed_out and not findings:
        findings = (judge_late(run.seconds, watch.still, sorted(watch.finished), run.host),)
    seen = {
        event.rank: decode(ScriptFacts, event.data)
        for event in run.events
        if event.data.get("kind") == "looked"
    }
    proof, verifications = judge_proof(seen, script, run.host, ended_well=not findings)
    missed = judge_injection(run.injected, run.host)
    script = replace(script, verifications=verifications)
    told = (*findings, *proof, *missed, *placement.findings)
    return _build(placement, script, worst_first(told))


def _moving(run: RankRun, watch: ScriptWatch, script: str) -> dict[int, ScriptPlace]:
    """The ranks that told nothing because their code moves: where they were when the run was ended."""
    silent = set(range(run.world_size)) - watch.working.keys() - watch.still.keys() - watch.finished
    stacks = {report.rank: report.stack for report in run.reports if not isinstance(report.stack, Missing)}
    return {
        rank: replace(ELSEWHERE, place=users_place(stacks[rank], script), stack=stacks[rank])
        if rank in stacks
        else ELSEWHERE
        for rank in silent
    }


def _replay(plan: ScriptPlan, run: RankRun) -> ScriptWatch:
    """Where the ranks were when the run ended, from what all processes of a launch know alike."""
    watch = ScriptWatch(run.world_size, plan.hang_seconds)
    for event in run.events:
        if run.given_up and watch.sees_hang():
            break
        watch.take(event)
    return watch


def _build(placement: Placement, script: ScriptResult, findings: tuple[Finding, ...]) -> TrainingReport:
    return TrainingReport(
        outcome=outcome_of_findings(findings),
        host=socket.gethostname(),
        strategies=(),
        findings=findings,
        script=script,
        machine=describe_machine(placement),
        simulated=None if placement.snapshot is None else placement.snapshot.simulated,
    )
