"""The report of a run on ranks: what they measured and what happened to them, judged."""

import os
import socket
from collections.abc import Mapping
from dataclasses import replace

from gpudiag.checks.collective import judge_collective, tell_missing_gpu
from gpudiag.checks.collective_speed import judge_collective_speed, largest_results, tell_algorithm
from gpudiag.collectives.cases import Sweep
from gpudiag.model.finding import Finding, outcome_of_findings, worst_first
from gpudiag.model.history import Baseline
from gpudiag.model.measure import CollectiveMeasurement, CollectiveResult
from gpudiag.model.report import CollectiveReport
from gpudiag.ranks.run import RankRun
from gpudiag.runs.collect import CaseCollector
from gpudiag.runs.placement import Placement
from gpudiag.runs.watched import Watched, explain_by


def build_report(
    run: RankRun,
    sweep: Sweep,
    placement: Placement,
    watched: Watched,
    earlier: Mapping[str, Baseline],
    *,
    one_clock: bool,
) -> CollectiveReport:
    """The report of a run, from the events that the agents of all ranks agreed on.

    `earlier` has this machine's own baselines by metric; `one_clock`: all ranks are on one machine.
    """
    measurement = build_measurement(run, sweep, placement, watched, one_clock=one_clock)
    judged = explain_by(judge_collective(measurement), watched.movements)
    speed = judge_collective_speed(measurement, placement.devices, os.environ, earlier) if one_clock else ()
    lacks = (tell_missing_gpu(measurement),) if placement.without_gpu else ()
    found = (*judged, *lacks, *placement.findings, *watched.findings, *explain_by(speed, watched.movements))
    findings = worst_first(found)
    simulated = None if placement.snapshot is None else placement.snapshot.simulated
    return CollectiveReport(outcome_of_findings(findings), measurement, findings, simulated)


def build_refusal(sweep: Sweep, placement: Placement, launcher: str, cause: Finding) -> CollectiveReport:
    """The report of a run whose ranks were not started, because of that fault of this host."""
    host = socket.gethostname()
    nothing = RankRun(
        placement.world_size, launcher, host, (), (), results={}, events=(), injected=(), seconds=0.0
    )
    measurement = build_measurement(nothing, sweep, placement, Watched((), ()), one_clock=True)
    simulated = None if placement.snapshot is None else placement.snapshot.simulated
    return CollectiveReport(cause.outcome, measurement, (cause, *placement.findings), simulated)


def build_measurement(
    run: RankRun, sweep: Sweep, placement: Placement, watched: Watched, *, one_clock: bool
) -> CollectiveMeasurement:
    """What was measured and what happened, from the events of a run; nothing is judged."""
    collector = CaseCollector(sweep.cases, run.world_size, one_clock=one_clock)
    for event in run.events:
        collector.take(event)
    hosts = {report.rank: report.host for report in run.reports}
    return CollectiveMeasurement(
        backend=placement.backend,
        world_size=run.world_size,
        launcher=run.launcher,
        host=run.host,
        torch_version=collector.torch_version,
        nccl_version=collector.nccl_version,
        device_kind="cuda" if placement.backend == "nccl" else "cpu",
        results=_with_algorithms(collector.results, placement),
        ranks=tuple(collector.with_device(report) for report in run.reports),
        incidents=(*run.incidents, *collector.incidents(hosts)),
        injected=run.injected,
        sizes_planned=len(sweep.cases),
        seconds=run.seconds,
        verify_share=collector.verify_share,
        moved=watched.movements,
        ranks_share_gpu=placement.ranks_share_gpu,
        timed_out=run.timed_out,
    )


def _with_algorithms(
    results: tuple[CollectiveResult, ...], placement: Placement
) -> tuple[CollectiveResult, ...]:
    """The results, with NCCL's algorithm at the largest size of each operation, where it can be told."""
    if placement.backend != "nccl":
        return results
    largest = largest_results(results)
    return tuple(
        replace(result, algorithm=tell_algorithm(result, placement.devices, os.environ))
        if result in largest
        else result
        for result in results
    )
