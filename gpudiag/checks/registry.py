"""What a check is: a frozen value around one pure function, and what that function returns."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum

from gpudiag.model.context import Context
from gpudiag.model.evidence import Evidence, Subject
from gpudiag.model.finding import Category, Finding, MeasuredSpeed, Outcome, Owner, Severity, worst
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.model.remedy import fit_remedy
from gpudiag.reference.reading_names import describe_missing, explain_missing

# Real GPUs that gave a reading, for `confirmed`; docs/gpu-paths.md has their table, and what passed there.
ONE_H100 = "one H100 (driver 580.159.04, 2026-11-26)"
ONE_H200 = "one H200 (driver 580.159.04, 2026-11-26)"
BOTH_GPUS = "one H100 and one H200 (driver 580.159.04, 2026-11-26)"


class Level(IntEnum):
    """How long a check may take, cheapest first; a level includes the levels below it."""

    INSTANT = 0  # readings only
    QUICK = 1
    STANDARD = 2
    LONG = 3
    ACCEPTANCE = 4  # of a machine that is new, or was repaired


@dataclass(frozen=True, slots=True)
class Basis:
    """What findings are judged by, for `gpudiag explain`, alike for the codes of one look.

    `reads` is what is read, and from where; `limit` what it is held against, and where that comes from;
    `look_also` are commands, and other topics of `gpudiag explain`.
    """

    reads: str
    limit: str
    look_also: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FindingKind:
    """One entry of the catalogue of findings: the stable code, meaning, remedy and basis.

    Everything that holds for a code in general is here, once. The catalogue is the union of `reports` over
    BUILTIN (`checks/catalogue.py`); docs/findings.md lists it.

    A FAIL keeps jobs off the machine, whoever must act. It does not where `jobs_may_start` has the reason,
    and where a setting of the job itself is the fault (owner JOB, severity CONFIG).

    `remedy` is given as `model/remedy.py` describes, kept so in `written_remedy`, and read as it is done on
    bare metal.
    """

    code: str
    outcome: Outcome
    severity: Severity
    category: Category
    owner: Owner
    meaning: str
    remedy: str
    basis: Basis
    stated: bool = False  # NVML or the kernel itself states the fault: no reading of ours to confirm
    jobs_may_start: str = ""  # in spite of a FAIL, for this reason
    written_remedy: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "written_remedy", self.remedy)
        object.__setattr__(self, "remedy", fit_remedy(self.remedy))

    @property
    def spares_jobs(self) -> str:
        """Why jobs may start in spite of a FAIL; empty where they may not."""
        return self.jobs_may_start or self._own_setting(self.owner)

    def _own_setting(self, owner: Owner) -> str:
        own = owner is Owner.JOB and self.severity is Severity.CONFIG
        return "a setting of the job itself is at fault, and another job runs" if own else ""

    def finding(
        self,
        subject: Subject,
        message: str,
        *evidence: Evidence,
        remedy: str = "",
        owner: Owner | None = None,
    ) -> Finding:
        """A finding of this kind; `remedy` and `owner` replace the catalogue's where the case is clearer.

        INDEX in a remedy is the GPU that the finding is about.
        """
        spares_jobs = self.jobs_may_start or self._own_setting(owner or self.owner)
        return Finding(
            code=self.code,
            outcome=self.outcome,
            severity=self.severity,
            category=self.category,
            owner=owner or self.owner,
            subject=subject,
            message=message,
            evidence=evidence,
            remedy="",
            blocks_jobs=self.outcome is Outcome.FAIL and not spares_jobs,
        ).with_remedy(remedy or self.written_remedy)


@dataclass(frozen=True, slots=True)
class Restated:
    """A finding whose fault another check may state better: there it is evidence, and no second finding.

    `stated_by` are the codes that state it, best first, on the same GPU. `citation` goes behind the other
    finding's message, `advice` before its remedy,
    and `request`, what the driver asks for (`a GPU reset`), before a remedy that does not restart the machine
    anyway.
    """

    finding: Finding
    stated_by: tuple[str, ...]
    citation: str = ""
    advice: str = ""
    request: str = ""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a check concluded, by `judged`, `does_not_apply`, `in_use`, `could_not_look` or `not_readable`.

    `missing_reason` is why a reading was not there, where that is why the check was skipped or could not
    look. `restated` are those of the findings that another check may state better. `speeds` are all that it
    judged, good ones too.
    """

    outcome: Outcome
    findings: tuple[Finding, ...] = ()
    reason: str | None = None
    missing_reason: MissingReason | None = None
    restated: tuple[Restated, ...] = ()
    speeds: tuple[MeasuredSpeed, ...] = ()


def judged(
    *findings: Finding, restated: tuple[Restated, ...] = (), speeds: tuple[MeasuredSpeed, ...] = ()
) -> Judgement:
    """The judgement of a check that looked: the worst of its findings, PASS where there is none."""
    outcome = worst(tuple(finding.outcome for finding in findings)) if findings else Outcome.PASS
    return Judgement(outcome, findings, restated=restated, speeds=speeds)


def does_not_apply(reason: str) -> Judgement:
    """SKIP: there is nothing here for the check to look at, and that is no fault."""
    return Judgement(Outcome.SKIP, reason=reason)


def in_use(reason: str) -> Judgement:
    """SKIP: the check applies, and others use what it would test."""
    return Judgement(Outcome.SKIP, reason=reason, missing_reason=MissingReason.IN_USE)


def could_not_look(reason: str) -> Judgement:
    """ERROR: the check should have been able to look, and was not."""
    return Judgement(Outcome.ERROR, reason=reason)


# What was not asked for, or this user or driver does not give, is skipped, and counted as such.
_SKIPPED = frozenset(
    (
        MissingReason.NOT_SUPPORTED,
        MissingReason.FUNCTION_NOT_FOUND,
        MissingReason.NO_PERMISSION,
        MissingReason.NOT_ASKED,
        MissingReason.IN_USE,
        MissingReason.SOURCE_ABSENT,
    )
)


def not_readable(what: str, missing: Missing) -> Judgement:
    """SKIP or ERROR for a missing reading, by its reason; `what` names it for people."""
    # The source's absence is the whole reason.
    describe = explain_missing if missing.reason is MissingReason.SOURCE_ABSENT else describe_missing
    outcome = Outcome.SKIP if missing.reason in _SKIPPED else Outcome.ERROR
    return Judgement(outcome, reason=f"{what}: {describe(missing)}", missing_reason=missing.reason)


@dataclass(frozen=True, slots=True)
class Check:
    """One check: its name, what it needs, what it may report, and the function that judges.

    `needs` are keys of `gpudiag.checks.needs.NEEDS`; the runner answers for a need that is not
    there, so the function may rely on all of them. `readings` are the names of those it judges, and
    `confirmed` is what has shown them to be as we take them (a capture, a real GPU, a kernel); nothing there
    means unconfirmed, and then only a kind that is `stated` may FAIL. What is read for a code, and its limit,
    are the code's own `basis`.
    """

    name: str
    title: str
    needs: tuple[str, ...]
    level: Level
    reports: tuple[FindingKind, ...]
    judge: Callable[[Context], Judgement]
    readings: tuple[str, ...] = ()
    confirmed: str = ""


def check(
    name: str,
    *,
    title: str,
    reports: tuple[FindingKind, ...],
    needs: tuple[str, ...] = (),
    level: Level = Level.INSTANT,
    readings: tuple[str, ...] = (),
    confirmed: str = "",
) -> Callable[[Callable[[Context], Judgement]], Check]:
    """A decorator that turns a function into a Check; it registers nothing (BUILTIN is the list)."""

    def build(judge: Callable[[Context], Judgement]) -> Check:
        return Check(name, title, needs, level, reports, judge, readings, confirmed)

    return build
