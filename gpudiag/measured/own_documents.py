"""gpudiag's own documents as tables: the collectives of `nccl-test --json`, the verdicts of a report."""

from typing import Any

from gpudiag.checks.benchmarks.collectives import NO_GPU, SHARED_GPU
from gpudiag.errors import UsageError
from gpudiag.model.benchmark import MeasuredTable, MeasuredValue, Metric, Setup, TestResult
from gpudiag.model.documents import from_document
from gpudiag.model.finding import Outcome
from gpudiag.model.measure import CollectiveMeasurement
from gpudiag.model.reading import NOT_ASKED, Missing
from gpudiag.model.report import CollectiveReport, Report

OWN = "gpudiag"
_STATUSES = {Outcome.PASS: "pass", Outcome.WARN: "warn", Outcome.FAIL: "fail", Outcome.SKIP: "skip"}


def own_tables(file: str, line: int, document: dict[str, Any]) -> list[MeasuredTable]:
    """The tables of one of gpudiag's documents; none for one that holds no measurement, or does not fit."""
    try:
        noun = from_document(document)
    except UsageError:
        return []
    if isinstance(noun, CollectiveReport):
        return _of_collectives(file, line, noun.measurement)
    if not isinstance(noun, Report):
        return []
    return [
        *(
            table
            for measured in (noun.measures.collective, noun.measures.operations)
            if not isinstance(measured, Missing)
            for table in _of_collectives(file, line, measured)
        ),
        _of_report(file, line, noun),
    ]


def _of_collectives(file: str, line: int, measured: CollectiveMeasurement) -> list[MeasuredTable]:
    setup = Setup(
        gpus=measured.world_size,
        nodes=len({rank.host for rank in measured.ranks}) or NOT_ASKED,
        nccl_version=measured.nccl_version,
    )
    remarks = [NO_GPU] if measured.device_kind == "cpu" else []
    remarks += [SHARED_GPU] if measured.ranks_share_gpu else []
    return [
        MeasuredTable(
            file,
            line,
            f"{OWN} nccl-test",
            NOT_ASKED,
            operation,
            Metric.BUSBW,
            tuple(
                MeasuredValue(
                    result.busbw_bytes_per_second, result.size_bytes, result.wrong_elements, result.in_place
                )
                for result in measured.results
                if result.op == operation and not isinstance(result.busbw_bytes_per_second, Missing)
            ),
            setup,
            complete=len(measured.results) >= measured.sizes_planned,
            remarks=tuple(remarks),
        )
        for operation in dict.fromkeys(
            result.op for result in measured.results if not isinstance(result.busbw_bytes_per_second, Missing)
        )
    ]


def _of_report(file: str, line: int, report: Report) -> MeasuredTable:
    """The outcome of each check, with its worst finding."""
    results = [
        TestResult(
            result.check,
            _STATUSES.get(result.outcome, "warn"),  # a check that could not look has passed nothing
            message=result.findings[0].message if result.findings else str(result.reason or ""),
        )
        for result in report.results
    ]
    return MeasuredTable(
        file, line, OWN, NOT_ASKED, "report", Metric.RESULTS, (), Setup(), results=tuple(results)
    )
