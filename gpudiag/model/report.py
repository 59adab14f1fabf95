"""The documents that commands print: verdict first, then what it rests on."""

from dataclasses import dataclass, field
from typing import ClassVar

from gpudiag.model.device import FLATTEN, Snapshot
from gpudiag.model.finding import CheckResult, Finding, Outcome
from gpudiag.model.measure import CollectiveMeasurement, Measures


@dataclass(frozen=True, slots=True)
class Report:
    """`gpudiag.report/1`: the verdict on one machine, every check's result, and what they saw."""

    SCHEMA: ClassVar[str] = "gpudiag.report/1"

    verdict: Outcome
    results: tuple[CheckResult, ...]
    snapshot: Snapshot
    measures: Measures = field(default_factory=Measures)

    def findings(self) -> tuple[Finding, ...]:
        """Every finding of every check, in check order."""
        return tuple(finding for result in self.results for finding in result.findings)


@dataclass(frozen=True, slots=True)
class CollectiveReport:
    """`gpudiag.collective/1`: the outcome of an nccl-test run, its results, ranks and findings.

    Findings come worst and most certain first: the first is the cause as far as gpudiag can tell.
    """

    SCHEMA: ClassVar[str] = "gpudiag.collective/1"

    outcome: Outcome
    measurement: CollectiveMeasurement = field(metadata=FLATTEN)
    findings: tuple[Finding, ...]
    simulated: str | None = None
