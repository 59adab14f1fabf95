"""The recipe of `gpudiag nccl-test`: place the ranks, run the sweep on them, judge what happened."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic

from gpudiag.checks.gpu.holders import describe_beside, pids_of
from gpudiag.checks.ranks.collective import samples_of
from gpudiag.collectives.cases import Sweep, plan_sweep
from gpudiag.model.codec import encode
from gpudiag.model.finding import Finding
from gpudiag.model.history import History
from gpudiag.model.measure import CollectiveMeasurement, Localisation
from gpudiag.model.operation import OPERATIONS
from gpudiag.model.plan import NcclTestPlan
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason, Reading
from gpudiag.model.report import CollectiveReport
from gpudiag.model.run import EventKind, RunEvent
from gpudiag.ranks.agents.fork_server import ForkServer
from gpudiag.ranks.agents.launch import run_ranks
from gpudiag.ranks.diagnosis.view import ViewListener
from gpudiag.ranks.environment import RankEnvironment
from gpudiag.ranks.inject import Fault, parse_fault
from gpudiag.ranks.launchers import Launcher
from gpudiag.ranks.node_labels import LabelFile, read_labels
from gpudiag.ranks.rank_run import RankEvent, RankRun
from gpudiag.ranks.stages import DEFAULT_STAGE_SECONDS, ENDLESS, IMPORT, RENDEZVOUS, USUAL, Budgets
from gpudiag.runs.collective_report import CaseCollector, build_measurement, build_refusal, build_report
from gpudiag.runs.fork_servers import ForkServers
from gpudiag.runs.interpreters import require_torch
from gpudiag.runs.localise import (
    PROGRESS_SECONDS,
    add_localisation,
    is_localisation_due,
    localise,
    why_not_localised,
)
from gpudiag.runs.placement import Placement, RanksWanted, place_ranks, why_unmet
from gpudiag.runs.rank_report import Watched, finish_watch, start_watch
from gpudiag.store.history import READ_SECONDS, HistoryKeeper, RunFacts, machine_key
from gpudiag.store.state_folder import default_store
from gpudiag.units import format_seconds, format_size

# --- earlier results

KIND = "nccl-test"
_GRACE_SECONDS = 0.3


class EarlierResults:
    """What the store holds about this machine. It never fails or delays a verdict.

    Only runs on GPUs are compared and kept, unless a store was named: ranks on CPUs are not judged by
    their speed, and the database library costs more than their start.
    """

    def __init__(self, placement: Placement, store: str | None) -> None:
        """Start reading, if there is something to compare with."""
        self._snapshot = placement.snapshot
        self._devices = placement.devices
        self._started = monotonic()
        self._warning = ""
        self._keeper: HistoryKeeper | None = None
        wanted = placement.backend == "nccl" or store is not None
        if wanted and placement.snapshot is not None:
            self._keeper = HistoryKeeper(store or default_store(), machine_key(placement.snapshot))

    def history(self) -> Reading[History]:
        """What the store holds about this machine, or why that is not known."""
        if self._keeper is None:
            return NOT_ASKED
        # It had the whole run's time to read; the verdict waits only a moment longer.
        seconds = max(READ_SECONDS, monotonic() - self._started + _GRACE_SECONDS)
        history, self._warning = self._keeper.read(seconds)
        return history

    def record(self, report: CollectiveReport) -> str:
        """Store the results of a run; return what went wrong in one line, empty if nothing did."""
        if self._keeper is None or self._snapshot is None:
            return ""
        # What was measured beside others is no speed of this machine.
        beside = describe_beside(self._snapshot, self._devices, pids_of(report.measurement.ranks))
        samples = () if beside else samples_of(report.measurement)
        return self._keeper.write(
            RunFacts(self._snapshot, KIND, report.outcome.value, samples, keep_snapshot=False)
        )

    def close(self) -> None:
        """End the processes that still read or write."""
        if self._keeper is not None:
            self._keeper.close()
            self._keeper = None


# --- the recipe

_ENTRY = "gpudiag.collectives.rank_main:run"


@dataclass(frozen=True, slots=True)
class NcclTestRun:
    """The result of a run; `reporter`: this process of the launch is the one that reports to the user."""

    report: CollectiveReport
    reporter: bool
    past: EarlierResults

    def record(self) -> str:
        """Store the results with the earlier ones; return what went wrong in one line, empty if nothing.

        It takes a moment: call it after the report is printed.
        """
        try:
            return self.past.record(self.report) if self.reporter else ""
        finally:
            self.past.close()


def run_nccl_test(
    plan: NcclTestPlan,
    environment: RankEnvironment | None = None,
    listener: Callable[[RunEvent], None] | None = None,
    *,
    python: str | None = None,
    store: str | None = None,
    notice: Callable[[str], None] | None = None,
    labels: str | None = None,
) -> NcclTestRun:
    """Run the plan on all its ranks; return the run with its report.

    `environment` is this process's place in a launch; None where gpudiag is to start the ranks. `listener`
    gets stages, results and findings as they happen, in rank 0's process only. `python` is the interpreter
    that runs the ranks. `store` names where this machine's earlier results are; by default they are in its
    state directory. `notice` gets a sentence while ranks are waited for. `labels` is a file with the racks,
    leaves and rails of the nodes, for a localisation.

    Raises:
        UsageError: the plan contradicts itself or the launch, or the file of labels is wrong.
        SourceError: GPUs are wanted, and cannot be used.
        LaunchError: the ranks could not be started.
    """
    label_file = _read_label_file(labels, environment)
    require_torch("nccl-test", python)
    with ForkServers() as servers:
        placement = place_ranks(ranks_of(plan), environment, python=python, ask_torch=servers.ask_torch)
        setup = replace(_set_up(plan, environment, placement, python, servers), labels=label_file)
        return _run_placed(setup, listener, store, notice)


def _read_label_file(labels: str | None, environment: RankEnvironment | None) -> LabelFile | None:
    """The file of labels, if there is one; rank 0 uses it, so on another machine it need not be there."""
    if labels is None or (environment is not None and environment.rank != 0 and not Path(labels).exists()):
        return None
    return read_labels(labels)


# A rank holds its contribution, what is expected of it, and the timed buffers, each as large as the
# largest size; out of place the latter are two.
_BUFFERS_IN_PLACE, _BUFFERS_OUT_OF_PLACE = 3, 4


def ranks_of(plan: NcclTestPlan) -> RanksWanted:
    """The ranks that the plan wants."""
    out_of_place = any(False in OPERATIONS[op].placements for op in plan.op)
    buffers = _BUFFERS_OUT_OF_PLACE if out_of_place else _BUFFERS_IN_PLACE
    return RanksWanted(
        plan.backend, plan.nproc, plan.deadline_seconds, plan.min_bytes, plan.max_bytes, buffers
    )


def _run_placed(
    setup: "_Setup",
    listener: Callable[[RunEvent], None] | None,
    store: str | None,
    notice: Callable[[str], None] | None,
) -> NcclTestRun:
    collector = CaseCollector(
        setup.sweep.cases,
        setup.placement.world_size,
        listener if setup.reports_events else None,
        one_clock=setup.one_clock,
    )
    collector.emit(EventKind.STAGE, 0.0, stage=IMPORT)
    past = EarlierResults(setup.placement, store)
    try:
        report, reporter = _measure(setup, collector, past, notice)
    except BaseException:
        past.close()
        raise
    seconds = report.measurement.seconds
    for finding in report.findings:
        collector.emit(EventKind.FINDING, seconds, finding=finding)
    collector.emit(EventKind.OUTCOME, seconds, outcome=report.outcome.value)
    return NcclTestRun(report, reporter, past)


def measure_collectives(
    plan: NcclTestPlan,
    here: Placement,
    python: str | None = None,
    servers: ForkServers | None = None,
    on_views: ViewListener | None = None,
) -> CollectiveMeasurement:
    """What the plan's sweep measures on ranks of this machine, and what happens to them, without judgement.

    One of `servers` forks the ranks, where given; `on_views` gets where they are. A plan that localises has
    pairs of ranks exchange data after that.

    Raises:
        UsageError: torch is not installed for that interpreter.
        LaunchError: the ranks could not be started.
    """
    require_torch("nccl-test", python)
    setup = _set_up(plan, None, here, python, servers)
    watch = start_watch(gpus=here.backend == "nccl")
    run = _run(setup, CaseCollector(setup.sweep.cases, here.world_size, one_clock=True), on_views=on_views)
    found: Reading[Localisation] = NOT_ASKED
    if plan.localise:
        why = why_not_localised(run)
        if why is None:
            found, again = _exchange(setup, run)
            run = add_localisation(run, found, again)
        else:
            found = Missing(MissingReason.NOT_SUPPORTED, why)
    measured = build_measurement(run, setup.sweep, here, finish_watch(watch, run.host), one_clock=True)
    return replace(measured, localisation=found)


@dataclass(frozen=True, slots=True)
class _Setup:
    """All that is decided before ranks are started."""

    plan: NcclTestPlan
    environment: RankEnvironment | None
    placement: Placement
    sweep: Sweep
    faults: tuple[Fault, ...]
    python: str | None
    servers: ForkServers | None
    labels: LabelFile | None = None

    def server(self, *, more: bool) -> ForkServer | None:
        """What forks the ranks' template, if anything does; `more`: other ranks follow these."""
        return None if self.servers is None else self.servers.server(self.python, start=more)

    @property
    def launcher(self) -> Launcher:
        """Who starts the ranks."""
        return Launcher.SPAWN if self.environment is None else self.environment.launcher

    @property
    def reports_events(self) -> bool:
        """Whether this process reports events as they happen."""
        return self.environment is None or self.environment.rank == 0

    @property
    def one_clock(self) -> bool:
        """Whether all ranks are on this machine."""
        return self.environment is None or self.environment.on_one_machine


def _set_up(
    plan: NcclTestPlan,
    environment: RankEnvironment | None,
    placement: Placement,
    python: str | None,
    servers: ForkServers | None,
) -> _Setup:
    sweep = plan_sweep(
        plan, placement.backend, placement.world_size, placement.max_bytes, float8=placement.float8
    )
    faults = tuple(parse_fault(text, placement.world_size, of_pairs=plan.localise) for text in plan.inject)
    return _Setup(plan, environment, placement, sweep, faults, python, servers)


def _measure(
    setup: _Setup, collector: CaseCollector, past: EarlierResults, notice: Callable[[str], None] | None
) -> tuple[CollectiveReport, bool]:
    """The report, and whether this process reports to the user."""
    sweep, placement = setup.sweep, setup.placement
    unmet = why_unmet(placement, one_machine=setup.one_clock)
    if unmet is not None:
        return build_refusal(sweep, placement, setup.launcher, unmet), setup.reports_events
    watch = start_watch(gpus=placement.backend == "nccl")
    run = _run(
        setup,
        collector,
        notice,
        partial(_is_to_be_localised, setup, past),
        collector.standings.add,
    )
    run, localisation = _localise(setup, past, run, notice)
    watched = finish_watch(watch, run.host)
    measurement = build_measurement(run, sweep, placement, watched, one_clock=setup.one_clock)
    report = build_report(
        replace(measurement, localisation=localisation),
        placement,
        past.history(),
        meanwhile=watched.findings,
        one_clock=setup.one_clock,
    )
    return report, run.reporter


def _is_to_be_localised(setup: _Setup, past: EarlierResults, run: RankRun) -> bool:
    """Whether all processes of the launch are to look for the bad node or link now.

    Only the leader's process is asked.
    """
    if setup.plan.localise:
        return why_not_localised(run) is None
    slow = any(event.data.get("kind") == "left_out" for event in run.events)
    judge = partial(_judge_run, setup, past, run)
    return is_localisation_due(run, setup.placement.backend, judge, slow=slow)


def _judge_run(setup: _Setup, past: EarlierResults, run: RankRun) -> tuple[Finding, ...]:
    """The findings of the run by itself, the worst first, without what happened on this machine meanwhile."""
    measurement = build_measurement(
        run, setup.sweep, setup.placement, Watched((), ()), one_clock=setup.one_clock
    )
    return build_report(measurement, setup.placement, past.history(), one_clock=setup.one_clock).findings


def _localise(
    setup: _Setup, past: EarlierResults, run: RankRun, notice: Callable[[str], None] | None
) -> tuple[RankRun, Reading[Localisation]]:
    """The run, and what was found by exchanges between pairs of nodes, or why nothing was."""
    if not run.goes_on:
        why = why_not_localised(run) if setup.plan.localise else None
        return run, NOT_ASKED if why is None else Missing(MissingReason.NOT_SUPPORTED, why)
    if notice is not None and run.reporter and not setup.plan.localise:
        # The verdict itself waits for them, which may be a minute where a GPU hangs.
        so_far = _judge_run(setup, past, run)
        found_so_far = so_far[0].message if so_far else "operations between these hosts take long"
        notice(f"{found_so_far}; now pairs of nodes exchange data, to find the node or link")
    found, again = _exchange(setup, run, notice)
    return add_localisation(run, found, again), found


def _exchange(
    setup: _Setup, run: RankRun, notice: Callable[[str], None] | None = None
) -> tuple[Reading[Localisation], RankRun]:
    """What pairs of nodes exchanged after that run, and the run of the ranks that did."""
    return localise(
        run,
        setup.placement,
        setup.environment,
        rendezvous_seconds=setup.plan.rendezvous_timeout_seconds,
        faults=setup.faults,
        python=setup.python,
        notice=notice,
        server=setup.server(more=False),
        labels=setup.labels,
    )


def _run(
    setup: _Setup,
    collector: CaseCollector,
    notice: Callable[[str], None] | None = None,
    goes_on: Callable[[RankRun], bool] | None = None,
    on_views: ViewListener | None = None,
) -> RankRun:
    plan, placement = setup.plan, setup.placement
    began = reported_at = monotonic()

    def add(event: RankEvent) -> None:
        nonlocal reported_at
        before = len(collector.results)
        collector.add(event)
        now = monotonic()
        if len(collector.results) > before and notice is not None and now - reported_at >= PROGRESS_SECONDS:
            reported_at = now
            last = collector.results[-1]
            notice(
                f"{len(collector.results)} of {collector.planned} sizes after {now - began:.0f} s:"
                f" {last.op} of {format_size(last.size_bytes)} takes {format_seconds(last.time_p50_seconds)}"
            )

    return run_ranks(
        _ENTRY,
        run_id="nccl-test",
        world_size=placement.world_size,
        arguments=encode(setup.sweep),
        environment=setup.environment,
        budgets=Budgets(
            stage_seconds={**DEFAULT_STAGE_SECONDS, RENDEZVOUS: plan.rendezvous_timeout_seconds},
            run_seconds=plan.timeout_seconds,
            patience=USUAL if plan.timeout_seconds is None else ENDLESS,
        ),
        faults=setup.faults,
        on_event=collector.add if setup.one_clock else add,
        on_views=on_views,
        goes_on=goes_on,
        notice=notice,
        variables=placement.variables,
        python=setup.python,
        server=setup.server(more=plan.localise or goes_on is None),  # a preflight goes on with other tests
    )
