"""Run checks over one Context: every check gives a result, and every fault one finding.

NVML states that a GPU is lost, the kernel log that it fell off the bus, the driver what it wants done about
it. The worst outcome, severity and owner of them count; jobs stay off where one of them blocks jobs; and
nothing is reported twice. The check whose finding was joined to another keeps its outcome, and names the code
that reports it.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from time import perf_counter

from gpudiag.checks.needs import NEEDS
from gpudiag.checks.registry import Check, Judgement, Restated, could_not_look
from gpudiag.model.context import Context
from gpudiag.model.evidence import DeviceSubject, HostSubject, Subject
from gpudiag.model.finding import (
    WORST_FIRST,
    CheckResult,
    Finding,
    Outcome,
    Owner,
    Severity,
    worst,
    worst_first,
)
from gpudiag.model.reading import Missing
from gpudiag.model.remedy import Platform, platform_of

# --- one fault, one finding

_GRAVEST_FIRST = (
    Severity.ISOLATE,
    Severity.RESET,
    Severity.TRIAGE,
    Severity.CONFIG,
    Severity.MONITOR,
    Severity.UNKNOWN,
    Severity.NONE,
)
# What one source calls a hardware fault, only hardware can fix.
_OWNERS_FIRST = (Owner.HARDWARE, Owner.HOST, Owner.SOFTWARE, Owner.JOB)
# Their remedies restart the machine, which does whatever the driver asks for: one instruction, not two.
_POWER_CYCLED = ("gpu.lost", "gpu.missing")
_MACHINE_RESTARTED = (*_POWER_CYCLED, "gpu.hung")


def join_restated(
    results: tuple[CheckResult, ...], restated: tuple[Restated, ...]
) -> tuple[CheckResult, ...]:
    """The results with each restated finding joined to the one that states it, where that was found.

    Last first: the kernel log joins NVML's statement before the driver's request joins its cause.
    """
    for one in reversed(restated):
        results = _join(results, one)
    return results


def _join(results: tuple[CheckResult, ...], one: Restated) -> tuple[CheckResult, ...]:
    finding, subject = one.finding, one.finding.subject
    source = _find(results, lambda other: (other.code, other.subject) == (finding.code, subject))
    if source is None:
        return results
    for code in one.stated_by:
        stated = _find(
            results,
            lambda other: other.code == code and same_gpu(other.subject, subject),  # noqa: B023
        )
        if stated is not None and stated is not source:
            joined = _merged(stated, source, one)
            return tuple(_without(_with(result, stated, joined), source, joined.code) for result in results)
    return results


def same_gpu(subject: Subject, other: Subject) -> bool:
    """Whether both findings are about one GPU; one may name it less fully than the other."""
    if not isinstance(subject, DeviceSubject) or not isinstance(other, DeviceSubject):
        return False
    pairs = ((subject.bus_id, other.bus_id), (subject.uuid, other.uuid))
    return any(not isinstance(mine, Missing) and mine == theirs for mine, theirs in pairs)


def _find(results: tuple[CheckResult, ...], is_it: Callable[[Finding], bool]) -> Finding | None:
    return next((finding for result in results for finding in result.findings if is_it(finding)), None)


def _merged(stated: Finding, restated: Finding, how: Restated) -> Finding:
    new = tuple(fact for fact in restated.evidence if fact not in stated.evidence)
    return replace(
        stated,
        outcome=min(stated.outcome, restated.outcome, key=WORST_FIRST.index),
        severity=min(stated.severity, restated.severity, key=_GRAVEST_FIRST.index),
        owner=min(stated.owner, restated.owner, key=_OWNERS_FIRST.index),
        message=f"{stated.message}; {how.citation}" if how.citation else stated.message,
        evidence=(*stated.evidence, *new),
        blocks_jobs=stated.blocks_jobs or restated.blocks_jobs,
    ).with_remedy(_advised(stated, how))


def _advised(stated: Finding, how: Restated) -> str:
    """The remedy after the advice, unless it has that; a power cycle notes what the driver asks for."""
    remedy, asked = stated.written_remedy, f"The driver asks for {how.request}"
    if how.request and stated.code in _POWER_CYCLED:
        remedy = f"{remedy} {asked}: that alone leaves the GPU's power on."
    request = f"{asked}." if how.request and stated.code not in _MACHINE_RESTARTED else ""
    new = [words for words in (how.advice, request) if words.rstrip(".") not in remedy]
    return " ".join((*new, remedy))


def _with(result: CheckResult, stated: Finding, joined: Finding) -> CheckResult:
    """The result with the changed finding, and an outcome no better than that finding's."""
    if not any(finding is stated for finding in result.findings):
        return result
    findings = tuple(joined if finding is stated else finding for finding in result.findings)
    return replace(result, findings=findings, outcome=worst((result.outcome, joined.outcome)))


def _without(result: CheckResult, restated: Finding, code: str) -> CheckResult:
    """The result without that finding, its reason naming the code that reports it; the outcome stays.

    Where it keeps findings of its own, the reason names its GPU: a fault of one is not reported by another's.
    """
    if not any(finding is restated for finding in result.findings):
        return result
    findings = tuple(finding for finding in result.findings if finding is not restated)
    codes = tuple(dict.fromkeys((*result.reported_by, code)))
    reason = f"reported by {', '.join(codes)}"
    if findings:  # a fault of its own GPUs is not reported by that of another
        before = (result.reason or "").split("; ") if result.reason else []
        reason = "; ".join(dict.fromkeys((*before, f"{_name(restated.subject)}: reported by {code}")))
    return replace(result, findings=findings, reason=reason, reported_by=codes)


def _name(subject: Subject) -> str:
    """The part that a finding is about, for the reason of a check: `GPU 5`."""
    if not isinstance(subject, DeviceSubject):
        return subject.host if isinstance(subject, HostSubject) else "another part"
    names = (
        (f"GPU {subject.nvml_index}", subject.nvml_index),
        (f"the GPU at {subject.bus_id}", subject.bus_id),
    )
    return next((name for name, value in names if not isinstance(value, Missing)), "a GPU")


# --- every check gives a result


def run_checks(context: Context, checks: Iterable[Check]) -> tuple[CheckResult, ...]:
    """One result per check, in order, each fault named once, its remedy as it can be done on this machine.

    Never raises: a check that raises is ERROR, with the exception's text.
    """
    ran = [_run(context, check) for check in checks]
    restated = tuple(one for _, own in ran for one in own)
    results = join_restated(tuple(result for result, _ in ran), restated)
    platform = platform_of(context.snapshot.machine)
    if platform is Platform.BARE_METAL:
        return results
    return tuple(
        replace(result, findings=tuple(one.on(platform) for one in result.findings)) for result in results
    )


def verdict(results: tuple[CheckResult, ...]) -> Outcome:
    """The worst outcome, SKIP ignored; ERROR where nothing was looked at."""
    return worst(tuple(result.outcome for result in results))


def findings_worst_first(results: tuple[CheckResult, ...]) -> tuple[Finding, ...]:
    """Every finding, worst outcome first; those of one outcome stay in check order."""
    return worst_first(finding for result in results for finding in result.findings)


def _run(context: Context, check: Check) -> tuple[CheckResult, tuple[Restated, ...]]:
    started = perf_counter()
    try:
        judgement: object = _judge(context, check)
    except Exception as error:  # noqa: BLE001 - one broken check costs only itself
        judgement = could_not_look(f"the check itself failed: {type(error).__name__}: {error}")
    if not isinstance(judgement, Judgement):
        judgement = could_not_look("the check itself failed: it gave no judgement")
    seconds = perf_counter() - started
    result = CheckResult(
        check.name,
        judgement.outcome,
        judgement.findings,
        judgement.reason,
        seconds,
        judgement.missing_reason,
        judgement.speeds,
    )
    return result, judgement.restated


def _judge(context: Context, check: Check) -> Judgement:
    for need in check.needs:
        absent = NEEDS[need](context)
        if absent is not None:
            return absent
    return check.judge(context)
