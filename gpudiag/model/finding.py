"""What a check concludes: outcomes, findings and the result of one check."""

import re
from collections.abc import Iterable
from dataclasses import field, replace

from gpudiag.compat import Self, StrEnum
from gpudiag.model.codec import UNWRITTEN, noun
from gpudiag.model.evidence import Evidence, Subject
from gpudiag.model.reading import MissingReason
from gpudiag.model.remedy import Platform, fit_remedy, gpu_in_commands, name_gpu_in


class Outcome(StrEnum):
    """How a check, a report or a run ended."""

    PASS = "pass"  # noqa: S105 - a verdict, not a password
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"  # it does not apply here, with the reason
    ERROR = "error"  # it should have worked, and gpudiag could not look


class Severity(StrEnum):
    """What a finding asks for, in DCGM's words (dcgm_errors.h, dcgmErrorSeverity_t)."""

    NONE = "none"
    MONITOR = "monitor"  # can go on; keep an eye on it
    ISOLATE = "isolate"  # must not be used until it is repaired
    UNKNOWN = "unknown"
    TRIAGE = "triage"  # needs a closer look to decide
    CONFIG = "config"  # a setting is wrong
    RESET = "reset"  # a GPU reset fixes it


class Category(StrEnum):
    """Which part a finding is about, in DCGM's words (dcgm_errors.h, dcgmErrorCategory_t)."""

    NONE = "none"
    PERF_THRESHOLD = "perf_threshold"
    PERF_VIOLATION = "perf_violation"
    SW_CONFIG = "sw_config"
    SW_LIBRARY = "sw_library"
    SW_XID = "sw_xid"
    SW_CUDA = "sw_cuda"
    SW_OTHER = "sw_other"
    HW_THERMAL = "hw_thermal"
    HW_MEMORY = "hw_memory"
    HW_NVLINK = "hw_nvlink"
    HW_NVSWITCH = "hw_nvswitch"
    HW_PCIE = "hw_pcie"
    HW_POWER = "hw_power"
    HW_OTHER = "hw_other"
    INTERNAL = "internal"


class Owner(StrEnum):
    """Who must act."""

    HARDWARE = "hardware"
    HOST = "host"
    SOFTWARE = "software"
    JOB = "job"


@noun
class Finding:
    """One fault, or one fact worth knowing: what, where, how it is known, and what to do.

    `owner`: who must act. `blocks_jobs`: whether a job may start on this machine until then, which is another
    question. Only a FAIL blocks; a document from before the field existed counts as one that blocks.
    """

    code: str
    outcome: Outcome
    severity: Severity
    category: Category
    owner: Owner
    subject: Subject
    message: str
    evidence: tuple[Evidence, ...]
    remedy: str
    blocks_jobs: bool = True
    written_remedy: str = field(default="", compare=False, metadata=UNWRITTEN)  # as model/remedy.py describes

    def with_remedy(self, written: str) -> Self:
        """The finding with this remedy, as it is done on bare metal."""
        return replace(self, remedy=name_gpu_in(fit_remedy(written), self.subject), written_remedy=written)

    def on(self, platform: Platform) -> Self:
        """The finding with its remedy as it can be done on a platform; one from a document as it stands."""
        if not self.written_remedy:
            return self
        return replace(self, remedy=name_gpu_in(fit_remedy(self.written_remedy, platform), self.subject))

    @property
    def remedy_of_any(self) -> str:
        """The remedy with INDEX where a command names the GPU, for other GPUs with the same fault."""
        gpu = gpu_in_commands(self.subject)
        return re.sub(rf"(?<=-i ){re.escape(gpu)}(?![\w:,])", "INDEX", self.remedy) if gpu else self.remedy


@noun
class JoinedFinding:
    """One fault as people read it, of one GPU or of all that share it.

    `finding` is the first of those that it stands for.
    """

    finding: Finding
    subject: str
    message: str  # without the subject where it begins with it
    facts: tuple[str, ...]
    remedy: str
    count: int = 1


@noun
class MeasuredSpeed:
    """One speed that was measured, and what it was held against.

    `outcome` is None where there was nothing to hold it against. `metric` is the name under which the store
    keeps it: only equal tests are compared.
    """

    metric: str
    name: str  # for people: `float16 products of 8192 x 8192`
    subject: Subject
    value: float
    unit: str
    outcome: Outcome | None = None
    held_against: tuple[Evidence, ...] = ()  # the value again, each with a limit and where that comes from


# A check skipped for these reasons does not apply to the machine; any other SKIP is a gap.
_NO_GAP = (None, MissingReason.NOT_SUPPORTED)


@noun
class CheckResult:
    """What one check concluded; `reason`: why it was skipped or could not look.

    `missing_reason` is the reason of the reading that was not there, where that is why: a SKIP without it, or
    with `not_supported`, does not apply to this machine; any other SKIP is a gap in what was looked at.
    """

    check: str
    outcome: Outcome
    findings: tuple[Finding, ...] = ()
    reason: str | None = None
    seconds: float = 0.0
    missing_reason: MissingReason | None = None
    speeds: tuple[MeasuredSpeed, ...] = field(default=(), compare=False, metadata=UNWRITTEN)  # for a receipt
    reported_by: tuple[str, ...] = ()  # the codes of the findings that state a fault of its own, too

    @property
    def is_gap(self) -> bool:
        """Whether the check was skipped though it applies to this machine."""
        return self.outcome is Outcome.SKIP and self.missing_reason not in _NO_GAP


# Worst first. SKIP is not in it: a skipped check shows nothing about the machine.
WORST_FIRST = (Outcome.FAIL, Outcome.ERROR, Outcome.WARN, Outcome.PASS)


def worst(outcomes: tuple[Outcome, ...]) -> Outcome:
    """The verdict over outcomes: FAIL > ERROR > WARN > PASS; SKIP is ignored, all skipped is ERROR."""
    for outcome in WORST_FIRST:
        if outcome in outcomes:
            return outcome
    return Outcome.ERROR


def outcome_of_findings(findings: Iterable[Finding]) -> Outcome:
    """The outcome of a look that gave these findings: the worst of them, PASS where there is none."""
    return worst((Outcome.PASS, *(finding.outcome for finding in findings)))


def worst_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The findings, worst first; equal ones keep their order."""
    places = {outcome: place for place, outcome in enumerate(WORST_FIRST)}
    return tuple(sorted(findings, key=lambda finding: places.get(finding.outcome, len(places))))
