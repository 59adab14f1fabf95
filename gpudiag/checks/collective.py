"""A collective run, judged: is the data right, and is everything measured that was to be measured?"""

from collections.abc import Iterable

from gpudiag.checks.collective_speed import COLLECTIVE_SLOW, COLLECTIVE_SPEED
from gpudiag.checks.ranks import RANK_FINDINGS, judge_ranks
from gpudiag.checks.registry import FindingKind
from gpudiag.checks.wrong_data import COLLECTIVE_CORRUPTED, judge_data
from gpudiag.model.evidence import Evidence, HostSubject
from gpudiag.model.finding import WORST_FIRST, Category, Finding, Outcome, Owner, Severity, worst
from gpudiag.model.measure import CollectiveMeasurement, InjectedFault
from gpudiag.model.reading import NOT_ASKED

COLLECTIVE_INCOMPLETE = FindingKind(
    code="collective.incomplete",
    outcome=Outcome.ERROR,
    severity=Severity.UNKNOWN,
    category=Category.INTERNAL,
    owner=Owner.SOFTWARE,
    meaning="Fewer sizes were measured than planned, and nothing that was seen explains it.",
    remedy="Run it again; if it stays so, report it with `--json` output.",
)
COLLECTIVE_TIMED_OUT = FindingKind(
    code="collective.timed_out",
    outcome=Outcome.ERROR,
    severity=Severity.CONFIG,
    category=Category.SW_CONFIG,
    owner=Owner.JOB,
    meaning="The time for the whole run was over before every size was measured, with no rank to blame.",
    remedy="Give it more time, as with `gpudiag nccl-test --timeout 300`, or fewer sizes with `--max-bytes`.",
)
COLLECTIVE_NOT_VERIFIED = FindingKind(
    code="collective.not_verified",
    outcome=Outcome.WARN,
    severity=Severity.NONE,
    category=Category.NONE,
    owner=Owner.JOB,
    meaning="Speeds were measured and the data was not looked at, because `--verify off` said so.",
    remedy="Leave out `--verify off`.",
)
INJECT_NOT_FIRED = FindingKind(
    code="inject.not_fired",
    outcome=Outcome.ERROR,
    severity=Severity.CONFIG,
    category=Category.SW_CONFIG,
    owner=Owner.JOB,
    meaning="A fault that `--inject` asked for never happened, so the run proves nothing about it.",
    remedy="Choose a rank, an iteration or a stage that the run reaches; see `--iterations` and `--nproc`.",
)

# Of a run that gpudiag itself plans: nothing is injected, everything is verified, and no message is so long
# that its speed could be held against published ones.
PLANNED_FINDINGS = (
    *RANK_FINDINGS,
    COLLECTIVE_CORRUPTED,
    COLLECTIVE_INCOMPLETE,
    COLLECTIVE_TIMED_OUT,
)
COLLECTIVE_FINDINGS = (
    *PLANNED_FINDINGS,
    COLLECTIVE_NOT_VERIFIED,
    INJECT_NOT_FIRED,
    COLLECTIVE_SLOW,
    COLLECTIVE_SPEED,
)


def judge_collective(measurement: CollectiveMeasurement) -> tuple[Finding, ...]:
    """Everything wrong with a run, worst and most certain first: the first finding is the cause.

    No finding means that every planned size was measured on every rank, and verified.
    """
    findings = [
        *judge_ranks(measurement),
        *judge_data(measurement),
        *judge_injection(measurement.injected, measurement.host),
        *_judge_verification(measurement),
    ]
    explained = any(finding.outcome in (Outcome.FAIL, Outcome.ERROR) for finding in findings)
    if not explained:
        findings += _judge_completeness(measurement)
    return tuple(sorted(findings, key=lambda finding: WORST_FIRST.index(finding.outcome)))


def collective_outcome(findings: tuple[Finding, ...]) -> Outcome:
    """The verdict of a run with those findings."""
    return worst((Outcome.PASS, *(finding.outcome for finding in findings)))


def judge_injection(injected: Iterable[InjectedFault], host: str) -> list[Finding]:
    """A finding for each fault that `--inject` asked for and that never happened."""
    return [
        INJECT_NOT_FIRED.finding(
            HostSubject(host),
            f"the injected fault {fault.specification} never happened",
            Evidence("fired", value=False, source=f"--inject {fault.specification}"),
        )
        for fault in injected
        if not fault.fired
    ]


def _judge_verification(measurement: CollectiveMeasurement) -> list[Finding]:
    unverified = [result for result in measurement.results if result.verified == NOT_ASKED]
    if not unverified:
        return []
    evidence = Evidence("unverified_sizes", len(unverified), limit=0, source="--verify off")
    message = f"the data of {len(unverified)} sizes was not verified"
    return [COLLECTIVE_NOT_VERIFIED.finding(HostSubject(measurement.host), message, evidence)]


def _judge_completeness(measurement: CollectiveMeasurement) -> list[Finding]:
    measured, planned = len(measurement.results), measurement.sizes_planned
    if measured == planned and planned > 0:
        return []
    evidence = Evidence("sizes_measured", measured, limit=planned, source="ranks")
    if measurement.timed_out:
        message = f"the time was over after {measured} of {planned} sizes"
        return [COLLECTIVE_TIMED_OUT.finding(HostSubject(measurement.host), message, evidence)]
    message = f"{measured} of {planned} planned sizes were measured, and nothing seen explains the rest"
    return [COLLECTIVE_INCOMPLETE.finding(HostSubject(measurement.host), message, evidence)]
