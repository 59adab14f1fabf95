"""The measurement of a collective from its ranks' events, and the report that judges it."""

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from time import monotonic
from typing import Any

from gpudiag.checks.gpu.holders import describe_beside, pids_of
from gpudiag.checks.ranks.collective import (
    find_algorithm,
    find_missing_gpu,
    judge_collective,
    judge_collective_speed,
    largest_results,
)
from gpudiag.collectives.cases import Case, Sweep
from gpudiag.collectives.results import (
    EarlyExit,
    RankCase,
    RankFacts,
    Ways,
    WrongBuffer,
    find_early_exit,
    merge_ranks,
)
from gpudiag.model.codec import decode
from gpudiag.model.evidence import Evidence
from gpudiag.model.finding import Finding, outcome_of_findings, worst_first
from gpudiag.model.history import History
from gpudiag.model.measure import (
    CollectiveMeasurement,
    CollectiveResult,
    Incident,
    IncidentKind,
    RankReport,
)
from gpudiag.model.operation import BARRIER
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason, Reading
from gpudiag.model.report import CollectiveReport
from gpudiag.model.run import EventKind, RankStanding, RunEvent
from gpudiag.ranks.rank_run import RankEvent, RankRun
from gpudiag.ranks.stages import MEASURE
from gpudiag.runs.events import StandingEvents
from gpudiag.runs.placement import Placement
from gpudiag.runs.rank_report import Watched, fit_to_place, snapshot_of

_VERIFICATION = "timed buffer"
_DIAGNOSIS = "the data that was expected"
_DISTANCE_UNITS = {"stale": "rounds", "misplaced": "blocks", "shifted": "elements"}
_CLOCK = "moments around the call, on one clock"
_NOT_REPORTED = Missing(MissingReason.ERROR, "no rank got far enough to report this")


class CaseCollector:
    """Collects what ranks emit, as it comes, and passes each result to a listener at once."""

    def __init__(
        self,
        cases: tuple[Case, ...],
        world_size: int,
        listener: Callable[[RunEvent], None] | None = None,
        *,
        one_clock: bool = True,
    ) -> None:
        """Expect each case from `world_size` ranks, all on one machine if `one_clock`."""
        self._one_clock = one_clock
        self._cases = cases
        self._world_size = world_size
        self._listener = listener
        self._started = monotonic()
        self._reported: dict[int, dict[int, RankCase]] = {}
        self._results: dict[int, CollectiveResult] = {}
        self._wrong: list[tuple[float, WrongBuffer]] = []
        self._passed: list[tuple[float, Case, EarlyExit]] = []
        self._facts: dict[int, RankFacts] = {}
        self._left_out = 0
        self.ways: Ways | None = None
        self.standings = StandingEvents(self._emit_standings)
        self._measure_seconds = 0.0
        self._verify_seconds = 0.0

    def add(self, event: RankEvent) -> None:
        """Add one event of one rank."""
        kind = event.data.get("kind")
        if kind == "rank_case":
            self._add_case(decode(RankCase, event.data), event.at_seconds)
        elif kind == "wrong_buffer":
            self._wrong.append((event.at_seconds, decode(WrongBuffer, event.data)))
        elif kind == "facts":
            self._add_facts(event)
        elif kind == "ways":
            # What one rank could not do, the run has not done.
            found = decode(Ways, event.data)
            self.ways = found if self.ways is None or _lacks(found) else self.ways
        elif kind == "left_out":
            self._left_out += int(event.data["cases"])

    def emit(self, kind: EventKind, at_seconds: float, **what: Any) -> None:
        """Send the listener an event, with the progress so far."""
        if self._listener is not None:
            self._listener(RunEvent(kind, at_seconds, len(self._results), self.planned, **what))

    def _emit_standings(self, ranks: tuple[RankStanding, ...]) -> None:
        self.emit(EventKind.RANKS, monotonic() - self._started, ranks=ranks)

    @property
    def left_out(self) -> int:
        """How many of the cases are not measured, because the network between the ranks' hosts is slow."""
        return self._left_out

    @property
    def planned(self) -> int:
        """How many results a whole run has."""
        return len(self._cases) - self._left_out

    @property
    def results(self) -> tuple[CollectiveResult, ...]:
        """The results so far, in the order of the plan."""
        return tuple(self._results[index] for index in sorted(self._results))

    def incidents(self, hosts: Mapping[int, str]) -> tuple[Incident, ...]:
        """One per wrong buffer reported, and per barrier that did not hold; `hosts` maps ranks to hosts."""
        passed = (
            Incident(
                kind=IncidentKind.PASSED,
                rank=early.rank,
                host=hosts.get(early.rank, ""),
                stage=MEASURE,
                at_seconds=at_seconds,
                evidence=_describe_early_exit(case, early),
            )
            for at_seconds, case, early in self._passed
        )
        wrong_data = (
            Incident(
                kind=IncidentKind.CORRUPTED,
                rank=wrong.rank,
                host=hosts.get(wrong.rank, ""),
                stage=MEASURE,
                at_seconds=at_seconds,
                evidence=_describe(self._cases[wrong.case], wrong),
            )
            for at_seconds, wrong in self._wrong
        )
        return (*passed, *wrong_data)

    def with_device(self, report: RankReport) -> RankReport:
        """The report with the GPU that the rank reported."""
        facts = self._facts.get(report.rank)
        return report if facts is None else replace(report, device_uuid=facts.device_uuid)

    @property
    def verify_share(self) -> Reading[float]:
        """The share of the ranks' time that went into filling and comparing buffers."""
        spent = self._measure_seconds + self._verify_seconds
        return self._verify_seconds / spent if spent else _NOT_REPORTED

    @property
    def torch_version(self) -> Reading[str]:
        """The version of torch that the ranks run."""
        return next((facts.torch_version for facts in self._facts.values()), _NOT_REPORTED)

    @property
    def nccl_version(self) -> Reading[str]:
        """The version of NCCL that the ranks run."""
        return next((facts.nccl_version for facts in self._facts.values()), _NOT_REPORTED)

    @property
    def nccl_built_version(self) -> Reading[str]:
        """The version of NCCL that the ranks' torch was built with."""
        return next((facts.nccl_built_version for facts in self._facts.values()), _NOT_REPORTED)

    def _add_facts(self, event: RankEvent) -> None:
        self._facts[event.rank] = decode(RankFacts, event.data)
        if len(self._facts) == self._world_size:
            self.emit(EventKind.STAGE, event.at_seconds, stage=MEASURE)

    def _add_case(self, rank_case: RankCase, at_seconds: float) -> None:
        ranks = self._reported.setdefault(rank_case.case, {})
        ranks[rank_case.rank] = rank_case
        self._measure_seconds += rank_case.measure_seconds
        self._verify_seconds += rank_case.verify_seconds
        if len(ranks) < self._world_size:
            return
        case, everyone = self._cases[rank_case.case], tuple(ranks.values())
        if len({len(rank.times_nanoseconds) for rank in everyone}) > 1:
            return  # ranks that fell out of step measured nothing together
        result = merge_ranks(case, everyone, self._world_size, one_clock=self._one_clock)
        early = find_early_exit(everyone) if case.op == BARRIER and result.verified is False else None
        if early is not None:
            self._passed.append((at_seconds, case, early))
        self._results[rank_case.case] = result
        del self._reported[rank_case.case]
        self.emit(EventKind.RESULT, at_seconds, result=result)


def _lacks(ways: Ways) -> bool:
    return any(isinstance(one, Missing) and one != NOT_ASKED for one in (ways.buffers, ways.graph))


def _describe_early_exit(case: Case, early: EarlyExit) -> tuple[Evidence, ...]:
    return (
        Evidence("op", case.op, source=_CLOCK),
        Evidence("iteration", early.iteration, source=_CLOCK),
        Evidence("before_rank", early.before_rank, source=_CLOCK),
        Evidence("early_by", early.early_seconds, unit="s", limit=0, source=_CLOCK),
    )


def _describe(case: Case, wrong: WrongBuffer) -> tuple[Evidence, ...]:
    elements, diagnosis = wrong.elements, wrong.diagnosis
    facts = [
        Evidence("op", case.op, source=_VERIFICATION),
        *([] if case.reduce is None else [Evidence("reduce", case.reduce, source=_VERIFICATION)]),
        Evidence("dtype", case.dtype, source=_VERIFICATION),
        Evidence("size_bytes", case.size_bytes, unit="B", source=_VERIFICATION),
        Evidence("iteration", wrong.iteration, source=_VERIFICATION),
        Evidence("wrong_elements", elements.count, limit=0, source=_VERIFICATION),
        Evidence("first_offset", elements.first_offset, unit="elements", source=_VERIFICATION),
        Evidence("last_offset", elements.last_offset, unit="elements", source=_VERIFICATION),
        Evidence("run_length", elements.run_length, unit="elements", source=_VERIFICATION),
        Evidence("xor_mask", hex(elements.xor_mask), source=_VERIFICATION),
        Evidence("flipped_bits", hex(elements.flipped_bits), source=_VERIFICATION),
        Evidence("diagnosis", diagnosis.kind, source=_DIAGNOSIS),
    ]
    if diagnosis.source is not None:
        facts.append(Evidence("data_of_rank", diagnosis.source, source=_DIAGNOSIS))
    if diagnosis.instead_of is not None:
        facts.append(Evidence("instead_of_rank", diagnosis.instead_of, source=_DIAGNOSIS))
    if diagnosis.distance:
        facts.append(
            Evidence("distance", diagnosis.distance, unit=_DISTANCE_UNITS[diagnosis.kind], source=_DIAGNOSIS)
        )
    return tuple(facts)


def build_report(
    measurement: CollectiveMeasurement,
    placement: Placement,
    history: Reading[History] = NOT_ASKED,
    *,
    meanwhile: Sequence[Finding] = (),
    one_clock: bool = True,
) -> CollectiveReport:
    """The report of a measurement: what ranks showed, how they were placed, `meanwhile`, and their speed.

    `history` is this machine's own; speeds are judged if all ranks are on it (`one_clock`).
    """
    lacks = (find_missing_gpu(measurement),) if placement.without_gpu else ()
    speeds = _judge_speed(measurement, placement, history) if one_clock else ()
    judged = fit_to_place(judge_collective(measurement), placement)
    found = (*judged, *lacks, *placement.findings, *meanwhile, *fit_to_place(speeds, placement))
    return _report(measurement, found, placement)


def _report(
    measurement: CollectiveMeasurement, found: Sequence[Finding], placement: Placement
) -> CollectiveReport:
    simulated = snapshot_of(placement).simulated
    return CollectiveReport(outcome_of_findings(found), measurement, worst_first(found), simulated)


def _judge_speed(
    measurement: CollectiveMeasurement, placement: Placement, history: Reading[History]
) -> tuple[Finding, ...]:
    """A finding per operation whose speed can be compared; none where others use the GPUs."""
    if describe_beside(snapshot_of(placement), placement.devices, pids_of(measurement.ranks)):
        return ()
    baselines = () if isinstance(history, Missing) else history.baselines
    earlier = {one.metric: one for one in baselines if one.device_uuid is None}
    return judge_collective_speed(measurement, placement.devices, os.environ, earlier)


def build_refusal(sweep: Sweep, placement: Placement, launcher: str, cause: Finding) -> CollectiveReport:
    """The report of a run whose ranks were not started, because of `cause`, a fault of this host."""
    host = socket.gethostname()
    nothing = RankRun(placement.world_size, launcher, host, (), (), injected=(), seconds=0.0)
    measurement = build_measurement(nothing, sweep, placement, Watched((), ()), one_clock=True)
    return _report(measurement, (cause, *placement.findings), placement)


def build_measurement(
    run: RankRun, sweep: Sweep, placement: Placement, watched: Watched, *, one_clock: bool
) -> CollectiveMeasurement:
    """What was measured and what happened, from the events of a run, without judgement."""
    collector = CaseCollector(sweep.cases, run.world_size, one_clock=one_clock)
    for event in run.events:
        collector.add(event)
    hosts = {report.rank: report.host for report in run.ranks}
    run = replace(
        run,
        ranks=tuple(collector.with_device(report) for report in run.ranks),
        incidents=(*run.incidents, *collector.incidents(hosts)),
    )
    return CollectiveMeasurement(
        **run.of_ranks(),
        backend=placement.backend,
        torch_version=collector.torch_version,
        nccl_version=collector.nccl_version,
        nccl_built_version=collector.nccl_built_version,
        device_kind="cuda" if placement.backend == "nccl" else "cpu",
        results=_with_algorithms(collector.results, placement),
        sizes_planned=collector.planned,
        sizes_left_out=collector.left_out,
        verify_share=collector.verify_share,
        moved=watched.movements,
        ranks_share_gpu=placement.ranks_share_gpu,
        timed_out=run.timed_out,
        buffers=NOT_ASKED if collector.ways is None else collector.ways.buffers,
        graph=NOT_ASKED if collector.ways is None else collector.ways.graph,
        lateness=run.lateness,
    )


def _with_algorithms(
    results: tuple[CollectiveResult, ...], placement: Placement
) -> tuple[CollectiveResult, ...]:
    """The results, with NCCL's algorithm at the largest size of each operation, if known."""
    if placement.backend != "nccl":
        return results
    largest = largest_results(results)
    return tuple(
        replace(result, algorithm=find_algorithm(result, placement.devices, os.environ))
        if result in largest
        else result
        for result in results
    )
