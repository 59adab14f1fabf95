"""Faults that runs of the service found and no later run has looked for again: they are present still.

The instant checks look every few seconds; what only a test shows (a slow copy, wrong bytes) is known from the
last run that tested it. A run replaces the results of earlier runs for the checks that it ran, for the GPUs
that it had.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpudiag.errors import GpudiagError
from gpudiag.model.device import Snapshot
from gpudiag.model.documents import loads
from gpudiag.model.evidence import DeviceSubject
from gpudiag.model.finding import CheckResult, Finding, Outcome
from gpudiag.model.report import Report
from gpudiag.model.run import Run


@dataclass(frozen=True, slots=True)
class RunFinding:
    """A finding, the check that gave it, and the kind of run that it ran in."""

    check: str
    kind: str
    finding: Finding


@dataclass(frozen=True, slots=True)
class Looked:
    """What one run looked for, by the names of checks, on which GPUs, and what it found."""

    checks: frozenset[str]
    gpus: frozenset[str]  # UUIDs
    found: tuple[RunFinding, ...]


def read_findings(run: Run, text: bytes) -> Looked | None:
    """The content of a run's report; None where it is no report on a machine."""
    try:
        report = loads(text.decode())
    except (GpudiagError, ValueError):  # written by another version, or cut short
        return None
    if not isinstance(report, Report):
        return None
    ran = [result for result in report.results if result.outcome is not Outcome.SKIP]
    return Looked(
        frozenset(result.check for result in ran),
        frozenset(run.gpus or (str(device.id.uuid) for device in report.snapshot.devices)),
        tuple(RunFinding(result.check, run.kind, one) for result in ran for one in result.findings),
    )


class RunFindings:
    """The faults that are present as far as the runs have shown."""

    def __init__(self) -> None:
        """Start without any."""
        self._found: tuple[RunFinding, ...] = ()

    def add(self, looked: Looked) -> None:
        """Take in what a run looked for; runs come in the order in which they ended."""
        kept = (one for one in self._found if not _is_looked_for(one, looked))
        self._found = (*kept, *looked.found)

    def present(self, snapshot: Snapshot, results: Iterable[CheckResult]) -> Iterator[tuple[str, Finding]]:
        """The kind of run and the finding, without those about GPUs that the machine no longer has.

        `results` are the service's own: what it looks at itself is not taken from a run of before.
        """
        here = {device.id.uuid for device in snapshot.devices}
        watched = {result.check for result in results if result.outcome is not Outcome.SKIP}
        for one in self._found:
            subject = one.finding.subject
            known = not isinstance(subject, DeviceSubject) or subject.uuid in here
            if known and one.check not in watched:
                yield one.kind, one.finding


def _is_looked_for(one: RunFinding, looked: Looked) -> bool:
    subject = one.finding.subject
    same_gpu = not isinstance(subject, DeviceSubject) or subject.uuid in looked.gpus
    return one.check in looked.checks and same_gpu
