"""The Report of what ranks measured, judged by checks, with what was seen of the machine meanwhile."""

import os
from collections.abc import Sequence
from dataclasses import replace

from gpudiag.model.context import Context
from gpudiag.model.device import Snapshot
from gpudiag.model.finding import CheckResult, Finding, Outcome, outcome_of_findings
from gpudiag.model.history import History
from gpudiag.model.measure import Measures
from gpudiag.model.reading import NOT_ASKED, Reading
from gpudiag.model.report import Report
from gpudiag.runs.gate import judge_results
from gpudiag.runs.placement import Placement


def build_context(measures: Measures, placement: Placement, history: Reading[History] = NOT_ASKED) -> Context:
    """The checks' context: the measures, the machine when ranks were placed, and the GPUs that took part."""
    snapshot = replace(_snapshot_of(placement), devices=placement.devices)
    return Context(snapshot, measures, history=history, environment=dict(os.environ))


def list_seen(name: str, findings: Sequence[Finding]) -> tuple[CheckResult, ...]:
    """A result with the findings from before or beside the measurement; empty if there are none."""
    return (CheckResult(name, outcome_of_findings(findings), tuple(findings)),) if findings else ()


def build_rank_report(measures: Measures, placement: Placement, results: tuple[CheckResult, ...]) -> Report:
    """The report of those results.

    Raises:
        ValueError: a check could not judge what was measured. That is a bug of ours, and the documents that
            show this report have no field for it.
    """
    for result in results:
        if result.outcome is Outcome.ERROR and not result.findings:
            raise ValueError(f"{result.check}: {result.reason}")
    return Report(judge_results(results), results, _snapshot_of(placement), measures)


def _snapshot_of(placement: Placement) -> Snapshot:
    assert placement.snapshot is not None  # noqa: S101 - whoever places ranks has looked at the machine
    return placement.snapshot
