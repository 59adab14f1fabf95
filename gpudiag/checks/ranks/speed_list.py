"""Every speed that a report holds, with what it was held against, judged or not."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from gpudiag.checks.ranks.collective import largest_results, metric_name
from gpudiag.checks.ranks.measured_speeds import SpeedVerdict, device_of
from gpudiag.checks.subjects import device_subject, name_device
from gpudiag.model.active import BandwidthResult, ComputeResult, metric_of
from gpudiag.model.device import Snapshot
from gpudiag.model.evidence import HostSubject, LinkSubject, RankSubject, Subject
from gpudiag.model.finding import Finding, MeasuredSpeed
from gpudiag.model.measure import CollectiveMeasurement, CollectiveResult
from gpudiag.model.reading import Missing, Reading
from gpudiag.model.report import Report
from gpudiag.units import format_size

_Timed = BandwidthResult | ComputeResult


def judged_speeds(
    snapshot: Snapshot, verdicts: Iterable[tuple[_Timed, SpeedVerdict]]
) -> tuple[MeasuredSpeed, ...]:
    """Each result of an active test with its verdict."""
    return tuple(
        replace(
            _speed_of(snapshot, result),
            outcome=verdict.outcome,
            held_against=() if verdict.outcome is None else verdict.evidence,
        )
        for result, verdict in verdicts
    )


def speeds_of(report: Report) -> tuple[MeasuredSpeed, ...]:
    """All speeds of the report, as they were measured; judged where a check has done so."""
    judged = {(one.metric, one.subject): one for result in report.results for one in result.speeds}
    measured = (*_active_speeds(report), *_collective_speeds(report))
    return tuple(judged.get((one.metric, one.subject), one) for one in measured)


def _active_speeds(report: Report) -> Iterator[MeasuredSpeed]:
    active = report.measures.active
    if isinstance(active, Missing):
        return
    tests = list(dict.fromkeys(copy.test for copy in active.bandwidth))
    for copy in sorted(active.bandwidth, key=lambda one: (tests.index(one.test), one.concurrent, one.rank)):
        yield _speed_of(report.snapshot, copy)
    dtypes = list(dict.fromkeys(product.dtype for product in active.compute))
    for product in sorted(active.compute, key=lambda one: (dtypes.index(one.dtype), one.rank)):
        yield _speed_of(report.snapshot, product)


def _collective_speeds(report: Report) -> Iterator[MeasuredSpeed]:
    for measured in (report.measures.collective, report.measures.operations):
        if not isinstance(measured, Missing):
            yield from collective_speeds(measured)


def collective_speeds(
    measured: CollectiveMeasurement, judged: Iterable[tuple[CollectiveResult, Finding | None]] = ()
) -> tuple[MeasuredSpeed, ...]:
    """The bus bandwidth of each operation at its largest size; `judged`: findings about some."""
    findings = {metric_name(result, measured): finding for result, finding in judged}
    return tuple(
        _collective_speed(measured, result, findings.get(metric_name(result, measured)))
        for result in largest_results(measured.results)
        if not isinstance(result.busbw_bytes_per_second, Missing)
    )


def _collective_speed(
    measured: CollectiveMeasurement, result: CollectiveResult, finding: Finding | None
) -> MeasuredSpeed:
    placement = "" if result.in_place else ", out of place"
    return MeasuredSpeed(
        metric_name(result, measured),
        f"{result.op} {result.dtype} of {format_size(result.size_bytes)}{placement}, busbw",
        HostSubject(measured.host),
        float(str(result.busbw_bytes_per_second)),
        "B/s",
        None if finding is None else finding.outcome,
        () if finding is None else tuple(fact for fact in finding.evidence if fact.limit is not None),
    )


def _speed_of(snapshot: Snapshot, result: _Timed) -> MeasuredSpeed:
    metric = metric_of(result)
    if isinstance(result, ComputeResult):
        name = f"{result.dtype} products of {result.size} x {result.size}"
        subject, _ = _place(snapshot, result.rank, result.device_uuid)
        return MeasuredSpeed(metric, name, subject, result.flops_per_second, "FLOP/s")
    name = f"{result.test.replace('_', ' ')}{', all at once' if result.concurrent else ''}"
    subject, source = _place(snapshot, result.rank, result.device_uuid)
    if not isinstance(result.peer, Missing):
        _, target = _place(snapshot, result.peer, result.peer_uuid)
        subject = LinkSubject((source, target), snapshot.host)
    return MeasuredSpeed(metric, name, subject, result.bytes_per_second, "B/s")


def _place(snapshot: Snapshot, rank: int, uuid: Reading[str]) -> tuple[Subject, str]:
    """The GPU that a rank works on, and its name; the rank itself on a CPU."""
    device = device_of(snapshot, uuid)
    if device is None:
        return RankSubject(rank, snapshot.host), f"rank {rank}"
    return device_subject(snapshot, device), name_device(device)
