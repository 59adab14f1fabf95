"""The recipe of `gpudiag train --script`: run the user's script on ranks, watch it, report what they did."""

import os
import re
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpudiag.checks.ranks.collective import judge_injection
from gpudiag.checks.training.script import judge_script
from gpudiag.checks.training.script_hang import ScriptLimits, describe_wait, judge_hang, judge_late
from gpudiag.checks.training.script_positions import positions_by_reports, waits
from gpudiag.checks.training.script_proof import judge_proof
from gpudiag.errors import UsageError
from gpudiag.model.codec import decode, encode
from gpudiag.model.finding import Finding, outcome_of_findings, worst_first
from gpudiag.model.job import Frame, Job, ProcessLook, ThreadLook
from gpudiag.model.option import require_between
from gpudiag.model.plan import LOOK_SECONDS
from gpudiag.model.reading import Missing
from gpudiag.model.run import RunEvent
from gpudiag.model.script import OWN_STACKS, OwnLook, ScriptError, ScriptFacts
from gpudiag.model.training import ScriptResult, TrainingReport
from gpudiag.ranks.agents.launch import TORCH, run_ranks
from gpudiag.ranks.environment import RankEnvironment
from gpudiag.ranks.inject import Fault, FaultKind, parse_fault
from gpudiag.ranks.rank_run import RankEvent, RankRun
from gpudiag.ranks.stages import STAGES, Budgets
from gpudiag.runs.events import TrainingEvents
from gpudiag.runs.interpreters import absent_modules
from gpudiag.runs.placement import Placement, RanksWanted, place_ranks
from gpudiag.runs.script_look import OutsideLook, script_frames
from gpudiag.runs.script_output import show_output
from gpudiag.runs.train import TrainingRun, describe_machine
from gpudiag.training.script_main import ScriptJob
from gpudiag.training.stack_watch import PATIENCE

# Ranks that wait in one collective report it within one look of each other.
_SETTLE_SECONDS = 1.5
_CLOSE_LOOK_SECONDS = 2.0  # a rank takes some 10 ms of a processor for it

_ENTRY = "gpudiag.training.script_main:run"
# A script may compute for as long as it likes: only a rank that dies, or all of them standing still, ends it.
_NO_LIMIT_SECONDS = 365 * 24 * 3600.0
_MAX_HANG_SECONDS = 24 * 3600.0
_FAULTS = (FaultKind.KILL, FaultKind.STOP)


def print_on_standard_error(sentence: str) -> None:
    """Show the user a sentence while the script runs."""
    print(f"gpudiag: {sentence}", file=sys.stderr, flush=True)


@dataclass
class ScriptWatch:
    """Follows the events of ranks; times are the agent's own."""

    world_size: int
    hang_seconds: float
    clock: Callable[[], float] = time.monotonic
    announce: Callable[[str], None] = print_on_standard_error
    still: dict[int, OwnLook] = field(default_factory=dict)
    working: dict[int, OwnLook] = field(default_factory=dict)
    raised: dict[int, ScriptError] = field(default_factory=dict)
    finished: dict[int, int] = field(default_factory=dict)  # pids by rank
    groups: dict[int, int] = field(default_factory=dict)
    waiting: set[int] = field(default_factory=set)  # those that stand still because they wait for other ranks
    _still_since: dict[int, float] = field(default_factory=dict)
    _described: tuple[int, frozenset[int]] = (0, frozenset())
    _reports: int = 0
    _reported_at: float = 0.0
    _looked_closely: set[int] = field(default_factory=set)
    _announced: tuple[tuple[int | None, str], ...] = ()

    def add(self, event: RankEvent) -> None:
        """Add an event of a rank."""
        kind, rank = event.data.get("kind"), event.rank
        if kind in ("still", "works", "moves", "done"):
            self._reports += 1
            self._reported_at = self.clock()
            self.waiting.discard(rank)
            self._looked_closely.discard(rank)
        if kind == "still":
            self._still_since.setdefault(rank, self.clock() - self.hang_seconds)
            self._note_still(rank, decode(OwnLook, event.data))
        elif kind == "looked_closely" and rank in self.still:
            self._looked_closely.add(rank)
            self._note_still(rank, decode(OwnLook, event.data))
        elif kind in ("works", "moves", "done"):
            self.still.pop(rank, None)
            self._still_since.pop(rank, None)
        if kind == "works":
            self.working[rank] = decode(OwnLook, event.data)
        elif kind in ("still", "moves", "done"):
            self.working.pop(rank, None)
        if kind == "raised":
            self.raised[rank] = decode(ScriptError, event.data)
        if kind == "done":
            self.finished[rank] = event.data["pid"]
        if kind in ("group", "done"):
            self.groups[rank] = max(self.groups.get(rank, 0), event.data["size"])

    def _note_still(self, rank: int, look: OwnLook) -> None:
        self.still[rank] = look
        (one,) = positions_by_reports({rank: look}, {}, {}, {rank: ""}, 0.0)
        (self.waiting.add if waits(one) else self.waiting.discard)(rank)

    def is_over(self) -> bool:
        """Whether all ranks stand still, or have waited too long for a working one; reports long waits.

        Ranks that stand still get a moment to look closer at themselves, which not all of them may be able
        to.
        """
        if self.sees_hang():
            late = self.clock() - self._reported_at >= _CLOSE_LOOK_SECONDS
            return late or self.still.keys() <= self._looked_closely
        if not self.waiting:
            return False
        self._announce_waits()
        since = min(self._still_since[rank] for rank in self.waiting)
        return self.clock() - since >= self.patience_seconds

    def sees_hang(self) -> bool:
        """Whether every rank stands still or has finished, and at least one has not finished."""
        return bool(self.still) and len(self.still) + len(self.finished) == self.world_size

    @property
    def patience_seconds(self) -> float:
        """Seconds that ranks may wait for one that works."""
        return PATIENCE * self.hang_seconds

    def _announce_waits(self) -> None:
        """Report once which ranks wait for which, once it is known what the others do, or never will be."""
        others = set(range(self.world_size)) - self.waiting - self.finished.keys()
        unknown = frozenset(others - self.working.keys() - self.still.keys())
        waited = self.clock() - max(self._still_since[rank] for rank in self.waiting)
        known_after = 2 * self.hang_seconds if unknown else self.hang_seconds + _SETTLE_SECONDS
        if waited < known_after or not others - self.still.keys():
            return
        if (self._reports, unknown) == self._described:
            return
        self._described = self._reports, unknown
        working = self.working | {rank: moving_at(rank) for rank in unknown}
        hosts = dict.fromkeys(range(self.world_size), "")
        positions = positions_by_reports(self.still, working, {}, hosts, 0.0)
        places = tuple((one.rank, one.where) for one in positions if one.rank in others)
        if places == self._announced:
            return
        self._announced = places
        self.announce(
            f"{describe_wait(positions)}. That may be fine, and the run continues; gpudiag ends it "
            f"once they have waited for {self.patience_seconds:.0f} s ({PATIENCE:.0f} times --hang-after)"
        )


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
    deadline_seconds: float = LOOK_SECONDS


def run_script(
    plan: ScriptPlan,
    environment: RankEnvironment | None = None,
    *,
    python: str | None = None,
    listener: Callable[[RunEvent], None] | None = None,
    notice: Callable[[str], None] | None = None,
) -> TrainingRun:
    """Run the script on its ranks; return the report of what they did.

    `listener` gets the start, the findings and the outcome, in rank 0's process only; `notice` a sentence
    while ranks are waited for.

    Raises:
        UsageError: the plan contradicts itself or the launch.
        SourceError: GPUs are wanted, and cannot be used.
        LaunchError: the ranks could not be started.
    """
    require_between(plan.hang_seconds, 1, _MAX_HANG_SECONDS, "--hang-after")
    wanted = RanksWanted(plan.backend, plan.nproc, plan.deadline_seconds)
    placement = place_ranks(wanted, environment, python=python)
    world_size = placement.world_size
    faults = tuple(_parse_fault(text, world_size) for text in plan.inject)
    emitter = TrainingEvents(0, listener if environment is None or environment.rank == 0 else None)
    emitter.start_ranks()
    look = OutsideLook(str(plan.path.resolve()), world_size)
    run, words = _run(plan, environment, placement, look, faults, python, notice)
    report = _report(plan, placement, run, words, look.job)
    emitter.emit_report(report)
    return TrainingRun(report, run.reporter)


def _run(
    plan: ScriptPlan,
    environment: RankEnvironment | None,
    placement: Placement,
    look: OutsideLook,
    faults: tuple[Fault, ...],
    python: str | None,
    notice: Callable[[str], None] | None,
) -> tuple[RankRun, tuple[str, ...]]:
    """The run, and the lines of its output in which a library explains what went wrong."""
    world_size = look.world_size
    watch = ScriptWatch(world_size, plan.hang_seconds)

    def add(event: RankEvent) -> None:
        watch.add(event)
        look.add(event)

    def is_over() -> bool:
        if watch.is_over():
            return look.is_done()
        look.stop()
        return False

    with show_output() as output, ExitStack() as ending:
        ending.callback(look.stop)
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
            run_id="script",
            world_size=world_size,
            arguments=encode(job),
            environment=environment,
            budgets=Budgets(
                stage_seconds=dict.fromkeys(STAGES, _NO_LIMIT_SECONDS), run_seconds=plan.timeout_seconds
            ),
            faults=faults,
            on_event=add,
            is_over=is_over,
            notice=notice,
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
            f"--inject {text} cannot be applied to a script",
            hint="kill:1@5 and stop:1@5 can: the number is seconds",
        )
    return fault


def _free_port() -> int:
    """A free port, on which the script's rank 0 will listen for env://."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _report(
    plan: ScriptPlan,
    placement: Placement,
    run: RankRun,
    words: Sequence[str],
    seen_from_outside: Job | None,
) -> TrainingReport:
    watch = _replay(plan, run)
    script = ScriptResult(
        script=str(plan.path),
        world_size=run.world_size,
        launcher=run.launcher,
        ranks=run.ranks,
        incidents=run.incidents,
        group_world_sizes=tuple(watch.groups.get(rank, 0) for rank in range(run.world_size)),
        seconds=run.seconds,
    )
    finished = len(run.results) == run.world_size
    findings = judge_script(script, host=run.host, finished=finished, raised=watch.raised, words=words)
    if run.given_up:
        hosts = dict.fromkeys(range(run.world_size), run.host)
        hosts |= {report.rank: report.host for report in run.ranks}
        limits = ScriptLimits(plan.hang_seconds, watch.patience_seconds)
        working = watch.working | _moving(run, watch, str(plan.path.resolve()))
        findings = (judge_hang(watch.still, working, watch.finished, hosts, limits, seen_from_outside),)
    elif run.timed_out and not findings:
        findings = (judge_late(run.seconds, watch.still, watch.finished, run.host),)
    seen = {
        event.rank: decode(ScriptFacts, event.data)
        for event in run.events
        if event.data.get("kind") == "looked"
    }
    proof, verifications = judge_proof(seen, script, run.host, ended_well=not findings)
    missed = judge_injection(run.injected, run.host)
    script = replace(script, verifications=verifications)
    found = (*findings, *proof, *missed, *placement.findings)
    return _build(placement, script, worst_first(found))


def _moving(run: RankRun, watch: ScriptWatch, script: str) -> dict[int, OwnLook]:
    """The ranks that reported nothing because their code moves, and where they were at the run's end."""
    silent = set(range(run.world_size)) - watch.working.keys() - watch.still.keys() - watch.finished.keys()
    stacks = {report.rank: report.stack for report in run.ranks if not isinstance(report.stack, Missing)}
    return {rank: moving_at(rank, stacks.get(rank, ()), script) for rank in silent}


def moving_at(rank: int, stack: Sequence[str] = (), script: str = "") -> OwnLook:
    """The look of a rank whose code moves; `stack`: `FILE:LINE in FUNCTION`, innermost first, or none."""
    parts = (re.fullmatch(r"(.*):(\d+) in (.*)", words) for words in stack)
    frames = tuple(Frame(part[1], part[3], int(part[2])) for part in parts if part is not None)
    main = ThreadLook(rank, "", "R", 0.0, frames=script_frames(frames, script))
    return OwnLook(
        ProcessLook(0.0, rank, "R", 0.0, threads=(main,), stacks=OWN_STACKS), work="its Python stack changes"
    )


def _replay(plan: ScriptPlan, run: RankRun) -> ScriptWatch:
    """Where the ranks were when the run ended, from the events that all processes of a launch share."""
    watch = ScriptWatch(run.world_size, plan.hang_seconds)
    for event in run.events:
        if run.given_up and watch.sees_hang() and event.data.get("kind") != "looked_closely":
            continue  # what they do once they are ended
        watch.add(event)
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
