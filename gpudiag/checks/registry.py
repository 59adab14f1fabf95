"""What a check is: a frozen value around one pure function, and what that function gives back."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from gpudiag.model.context import Context
from gpudiag.model.evidence import Evidence, Subject
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity, worst


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
class Judgement:
    """What a check concluded. Build it with `judged`, `does_not_apply` or `could_not_look`."""

    outcome: Outcome
    findings: tuple[Finding, ...] = ()
    reason: str | None = None


def judged(*findings: Finding) -> Judgement:
    """The judgement of a check that looked: the worst of its findings, PASS where there is none."""
    outcome = worst(tuple(finding.outcome for finding in findings)) if findings else Outcome.PASS
    return Judgement(outcome, findings)


def does_not_apply(reason: str) -> Judgement:
    """SKIP: there is nothing here for the check to look at, and that is in order."""
    return Judgement(Outcome.SKIP, reason=reason)


def could_not_look(reason: str) -> Judgement:
    """ERROR: it should have been possible to look, and it was not."""
    return Judgement(Outcome.ERROR, reason=reason)


@dataclass(frozen=True, slots=True)
class Check:
    """One check: its name, what it wants to see, what it may report, and the function that judges.

    `needs` are keys of `gpudiag.checks.needs.NEEDS`; the runner answers for a need that is not
    there, so the function may rely on all of them.
    """

    name: str
    title: str
    needs: tuple[str, ...]
    level: Level
    reports: tuple[FindingKind, ...]
    judge: Callable[[Context], Judgement]


def check(
    name: str,
    *,
    title: str,
    reports: tuple[FindingKind, ...],
    needs: tuple[str, ...] = (),
    level: Level = Level.INSTANT,
) -> Callable[[Callable[[Context], Judgement]], Check]:
    """A decorator that makes a Check of a function; it registers nothing (BUILTIN is the list)."""

    def build(judge: Callable[[Context], Judgement]) -> Check:
        return Check(name, title, needs, level, reports, judge)

    return build
