"""The documents that commands print, of one machine or of many: verdict first, then what it rests on."""

from dataclasses import field
from datetime import datetime
from typing import ClassVar

from gpudiag.model.active import ActiveMeasurement, DiskResult
from gpudiag.model.codec import FLATTEN, noun
from gpudiag.model.device import Snapshot
from gpudiag.model.finding import CheckResult, Finding, Outcome, Owner, Severity
from gpudiag.model.measure import CollectiveMeasurement
from gpudiag.model.reading import NOT_ASKED, Reading
from gpudiag.model.training import StrategyMeasurement


@noun
class Measures:
    """Everything measured for one report; what was not measured is NOT_ASKED."""

    collective: Reading[CollectiveMeasurement] = NOT_ASKED
    active: Reading[ActiveMeasurement] = NOT_ASKED
    training: Reading[tuple[StrategyMeasurement, ...]] = NOT_ASKED  # one per strategy that ran
    # Of level acceptance alone:
    operations: Reading[CollectiveMeasurement] = NOT_ASKED  # every collective
    card_pairs: Reading[CollectiveMeasurement] = NOT_ASKED  # each two GPUs by their network cards
    disks: Reading[tuple[DiskResult, ...]] = NOT_ASKED


@noun
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


@noun
class CollectiveReport:
    """`gpudiag.collective/1`: the outcome of an nccl-test run, its results, ranks and findings.

    Findings come worst and most certain first: the first is the cause as far as gpudiag knows.
    """

    SCHEMA: ClassVar[str] = "gpudiag.collective/1"

    outcome: Outcome
    measurement: CollectiveMeasurement = field(metadata=FLATTEN)
    findings: tuple[Finding, ...]
    simulated: str | None = None


@noun
class MachineVerdict:
    """One machine's report, or the reason why it could not be read; such a machine is ERROR."""

    name: str  # the host; with the file's path where a host has several reports, or its report is unreadable
    path: str
    verdict: Outcome
    reason: str | None  # why the report could not be read, or why its verdict is not taken as it stands
    taken_at: Reading[datetime]
    simulated: str | None
    looked: int  # checks
    skipped: int


@noun
class FindingGroup:
    """The same finding on one machine or many; for a check that could not look, `code` is its name."""

    code: str
    outcome: Outcome
    severity: Severity
    owner: Owner | None  # None for a check that could not look
    machines: tuple[str, ...]
    count: int  # of findings: a machine may have several
    message: str  # the first one's
    remedy: (
        str  # for all of them: INDEX where their GPUs differ, and where remedies differ, with its machines
    )


@noun
class MergedReport:
    """`gpudiag.merged/1`: the worst verdict of all machines, and each finding once with its machines.

    Groups come worst first, then the widest spread.
    """

    SCHEMA: ClassVar[str] = "gpudiag.merged/1"

    verdict: Outcome
    machines: tuple[MachineVerdict, ...]
    groups: tuple[FindingGroup, ...]
    repeated: tuple[str, ...] = ()  # files with a report that another one holds too; it counts once
    # Of a launch: the machines that a job should do without, as the launcher names them; the option that
    # leaves them out.
    unfit: tuple[str, ...] = ()
    leave_out: str | None = None
