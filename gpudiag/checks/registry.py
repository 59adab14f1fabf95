"""What a check is: a frozen value around one pure function, and what that function gives back."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from gpudiag.model.context import Context
from gpudiag.model.evidence import Evidence, Subject
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity, worst
from gpudiag.model.reading import Missing, MissingReason


class Level(IntEnum):
    """How long a check may take, cheapest first; a level includes the levels below it."""

    INSTANT = 0  # readings only
    QUICK = 1
    STANDARD = 2
    LONG = 3


@dataclass(frozen=True, slots=True)
class FindingKind:
    """One entry of the catalogue of findings: the stable code, what it means, and what to do.

    The catalogue is the union of `reports` over BUILTIN; docs/findings.md lists it.
    """

    code: str
    outcome: Outcome
    severity: Severity
    category: Category
    owner: Owner
    meaning: str
    remedy: str
    stated: bool = False  # NVML, or the kernel, itself says that it is so: no reading of ours to confirm

    def finding(
        self,
        subject: Subject,
        message: str,
        *evidence: Evidence,
        remedy: str = "",
        owner: Owner | None = None,
    ) -> Finding:
        """A finding of this kind; `remedy` and `owner` replace the catalogue's where the case is clearer."""
        return Finding(
            code=self.code,
            outcome=self.outcome,
            severity=self.severity,
            category=self.category,
            owner=owner or self.owner,
            subject=subject,
            message=message,
            evidence=evidence,
            remedy=remedy or self.remedy,
        )


@dataclass(frozen=True, slots=True)
class Restated:
    """A finding whose fault another check may state better: there it is evidence, and no second finding.

    `stated_by` are the codes that state it, best first, on the same GPU. `citation` goes behind the other
    finding's message, `advice` before its remedy,
    and `request`, what the driver asks for, before a remedy that does not restart the machine anyway.
    """

    finding: Finding
    stated_by: tuple[str, ...]
    citation: str = ""
    advice: str = ""
    request: str = ""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a check concluded. Build it with `judged`, `does_not_apply`, `could_not_look` or `not_readable`.

    `missing_reason` is why a reading was not there, where that is why the check was skipped or could not look.
    `restated` are those of the findings that another check may state better.
    """

    outcome: Outcome
    findings: tuple[Finding, ...] = ()
    reason: str | None = None
    missing_reason: MissingReason | None = None
    restated: tuple[Restated, ...] = ()


def judged(*findings: Finding, restated: tuple[Restated, ...] = ()) -> Judgement:
    """The judgement of a check that looked: the worst of its findings, PASS where there is none."""
    outcome = worst(tuple(finding.outcome for finding in findings)) if findings else Outcome.PASS
    return Judgement(outcome, findings, restated=restated)


def does_not_apply(reason: str) -> Judgement:
    """SKIP: there is nothing here for the check to look at, and that is in order."""
    return Judgement(Outcome.SKIP, reason=reason)


def could_not_look(reason: str) -> Judgement:
    """ERROR: it should have been possible to look, and it was not."""
    return Judgement(Outcome.ERROR, reason=reason)


# What nobody asked for, or what this user or driver does not give, is skipped, and counted as such.
_SKIPPED = frozenset(
    (
        MissingReason.NOT_SUPPORTED,
        MissingReason.FUNCTION_NOT_FOUND,
        MissingReason.NO_PERMISSION,
        MissingReason.NOT_ASKED,
        MissingReason.SOURCE_ABSENT,
    )
)


def not_readable(what: str, missing: Missing) -> Judgement:
    """SKIP or ERROR for a reading that is not there, by its reason; `what` names it for people."""
    words = missing.reason.value.replace("_", " ")
    detail = f" ({missing.detail})" if missing.detail else ""
    if missing.detail and missing.reason is MissingReason.SOURCE_ABSENT:
        words, detail = missing.detail, ""  # what is absent, and why, says all of it
    outcome = Outcome.SKIP if missing.reason in _SKIPPED else Outcome.ERROR
    return Judgement(outcome, reason=f"{what}: {words}{detail}", missing_reason=missing.reason)


@dataclass(frozen=True, slots=True)
class Check:
    """One check: its name, what it wants to see, what it may report, and the function that judges.

    `needs` are keys of `gpudiag.checks.needs.NEEDS`; the runner answers for a need that is not
    there, so the function may rely on all of them. `reads` are the readings it judges, `limit` is where
    the limits come from, `confirmed` is what has shown the readings to be as we take them (a capture, a
    real GPU, a kernel); nothing there means unconfirmed, and then only a kind that is `stated` may FAIL.
    """

    name: str
    title: str
    needs: tuple[str, ...]
    level: Level
    reports: tuple[FindingKind, ...]
    judge: Callable[[Context], Judgement]
    reads: tuple[str, ...] = ()
    limit: str = ""
    confirmed: str = ""


def check(
    name: str,
    *,
    title: str,
    reports: tuple[FindingKind, ...],
    needs: tuple[str, ...] = (),
    level: Level = Level.INSTANT,
    reads: tuple[str, ...] = (),
    limit: str = "",
    confirmed: str = "",
) -> Callable[[Callable[[Context], Judgement]], Check]:
    """A decorator that makes a Check of a function; it registers nothing (BUILTIN is the list)."""

    def build(judge: Callable[[Context], Judgement]) -> Check:
        return Check(name, title, needs, level, reports, judge, reads, limit, confirmed)

    return build
