"""The recipe of `gpudiag train --script`: run the user's own script on ranks, watch it, say what the ranks did."""

import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gpudiag.checks.collective import judge_injection
from gpudiag.checks.training import training_outcome
from gpudiag.checks.training_script import judge_hang, judge_late, judge_script
from gpudiag.errors import UsageError
from gpudiag.model.codec import encode
from gpudiag.model.event import RunEvent
from gpudiag.model.finding import Finding
from gpudiag.model.plan import NcclTestPlan, require_between
from gpudiag.model.training import ScriptResult, TrainingReport
from gpudiag.ranks.environment import RankEnvironment, read_environment
from gpudiag.ranks.inject import Fault, FaultKind, parse_fault
from gpudiag.ranks.launch import TORCH, run_ranks
from gpudiag.ranks.run import RankEvent, RankRun
from gpudiag.ranks.stages import STAGES, Budgets
from gpudiag.runs.interpreters import absent_modules
from gpudiag.runs.nccl_test import RankPlace
from gpudiag.runs.placement import Placement, place_ranks
from gpudiag.runs.train import DEFAULT_CPU_RANKS, describe_machine
from gpudiag.runs.train_events import TrainingTeller
from gpudiag.training.script_main import ScriptJob

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


@dataclass
class _HangWatch:
    """Follows which ranks stand still, and where."""

    world_size: int
    stacks: dict[int, list[str]] = field(default_factory=dict)
    finished: set[int] = field(default_factory=set)
    groups: dict[int, int] = field(default_factory=dict)

    def take(self, event: RankEvent) -> None:
        """Take what a rank told."""
        kind = event.data.get("kind")
        if kind == "still":
            self.stacks[event.rank] = event.data["stack"]
        elif kind == "moves":
            self.stacks.pop(event.rank, None)
        elif kind == "done":
            self.finished.add(event.rank)
            self.stacks.pop(event.rank, None)
        if kind in ("group", "done"):
            self.groups[event.rank] = max(self.groups.get(event.rank, 0), event.data["size"])

    def sees_hang(self) -> bool:
        """Whether every rank stands still, or has finished, and one at least has not."""
        return bool(self.stacks) and len(self.stacks) + len(self.finished) == self.world_size


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
    run = _run(plan, environment, placement, world_size, faults, python)
    report = _report(plan, placement, run)
    teller.tell_report(report)
    return ScriptRun(report, run.reporter)


def _run(
    plan: ScriptPlan,
    environment: RankEnvironment | None,
    placement: Placement,
    world_size: int,
    faults: tuple[Fault, ...],
    python: str | None,
) -> RankRun:
    watch = _HangWatch(world_size)
    with _output_shown() as descriptor:
        job = ScriptJob(
            path=str(plan.path.resolve()),
            arguments=plan.arguments,
            output_pid=os.getpid(),
            output_descriptor=descriptor,
            master_port=_free_port(),
            hang_seconds=plan.hang_seconds,
        )
        return run_ranks(
            _ENTRY,
            world_size=world_size,
            arguments=encode(job),
            environment=environment,
            budgets=Budgets(
                stage_seconds=dict.fromkeys(STAGES, _NO_LIMIT_SECONDS), run_seconds=plan.timeout_seconds
            ),
            faults=faults,
            on_event=watch.take,
            is_over=watch.sees_hang,
            python=python,
            variables=placement.variables,
            preload=() if absent_modules(("torch",), python) else TORCH,
        )


def _parse_fault(text: str, world_size: int) -> Fault:
    fault = parse_fault(text, world_size)
    if fault.kind not in _FAULTS:
        raise UsageError(
            f"--inject {text} cannot be done to a script",
            hint="kill:1@5 and stop:1@5 can: the number is seconds",
        )
    return fault


@contextmanager
def _output_shown() -> Iterator[int]:
    """A descriptor for ranks to write to; what comes is shown on standard error as it comes."""
    reading, writing = os.pipe()

    def show() -> None:
        while chunk := os.read(reading, 65536):
            sys.stderr.buffer.write(chunk)
            sys.stderr.flush()

    shower = threading.Thread(target=show, name="gpudiag-script-output", daemon=True)
    shower.start()
    try:
        yield writing
    finally:
        os.close(writing)
        shower.join(5.0)  # a process that the script left behind may still hold the pipe
        if not shower.is_alive():
            os.close(reading)


def _free_port() -> int:
    """A port that nobody listens on; the script's rank 0 will, for env://."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _report(plan: ScriptPlan, placement: Placement, run: RankRun) -> TrainingReport:
    watch = _replay(run)
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
    findings = judge_script(script, host=run.host, finished=finished)
    if run.given_up:
        findings = (
            judge_hang(
                watch.stacks, sorted(watch.finished), {report.rank: report.host for report in run.reports}
            ),
        )
    elif run.timed_out and not findings:
        findings = (judge_late(run.seconds, watch.stacks, sorted(watch.finished), run.host),)
    missed = judge_injection(run.injected, run.host)
    return _build(placement, script, (*findings, *missed, *placement.findings))


def _replay(run: RankRun) -> _HangWatch:
    """Where the ranks were when the run ended, from what all processes of a launch know alike."""
    watch = _HangWatch(run.world_size)
    for event in run.events:
        if run.given_up and watch.sees_hang():
            break
        watch.take(event)
    return watch


def _build(placement: Placement, script: ScriptResult, findings: tuple[Finding, ...]) -> TrainingReport:
    return TrainingReport(
        outcome=training_outcome(findings),
        host=socket.gethostname(),
        strategies=(),
        findings=findings,
        script=script,
        machine=describe_machine(placement),
        simulated=None if placement.snapshot is None else placement.snapshot.simulated,
    )
