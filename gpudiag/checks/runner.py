"""Run checks over one Context: every check gives a result, whatever happens inside it."""

from collections.abc import Iterable
from time import perf_counter

from gpudiag.checks.needs import NEEDS
from gpudiag.checks.registry import Check, Judgement, Restated, could_not_look
from gpudiag.checks.same_fault import join_restated
from gpudiag.model.context import Context
from gpudiag.model.finding import CheckResult, Finding, Outcome, worst, worst_first


def run_checks(context: Context, checks: Iterable[Check]) -> tuple[CheckResult, ...]:
    """One result per check, in order, each fault named once.

    Never raises: a check that raises is ERROR, with the exception's text.
    """
    ran = [_run(context, check) for check in checks]
    restated = tuple(one for _, told in ran for one in told)
    return join_restated(tuple(result for result, _ in ran), restated)


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
        check.name, judgement.outcome, judgement.findings, judgement.reason, seconds, judgement.missing_reason
    )
    return result, judgement.restated


def _judge(context: Context, check: Check) -> Judgement:
    for need in check.needs:
        absent = NEEDS[need](context)
        if absent is not None:
            return absent
    return check.judge(context)
