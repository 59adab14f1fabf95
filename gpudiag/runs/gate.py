"""The gate: results to a verdict and an exit status. Missing results never open it."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from gpudiag.checks.drift import CHANGED, PORT_GONE
from gpudiag.checks.registry import Check
from gpudiag.errors import ExitStatus
from gpudiag.model.finding import CheckResult, Outcome, worst
from gpudiag.model.plan import PreflightPlan
from gpudiag.model.report import Report

# Findings that the machine differs from its last good run.
_UNACCEPTED = frozenset((CHANGED.code, PORT_GONE.code))


def complete_results(checks: Iterable[Check], results: Sequence[CheckResult]) -> tuple[CheckResult, ...]:
    """The results, with ERROR for each check without one, and each at least as bad as its findings."""
    given = {result.check for result in results}
    lost = tuple(
        CheckResult(check.name, Outcome.ERROR, reason="the check gave no result")
        for check in checks
        if check.name not in given
    )
    return (*results, *lost)


def judge_results(results: Sequence[CheckResult]) -> Outcome:
    """The verdict: the worst of all outcomes, including findings'; ERROR if no check has looked."""
    outcomes = [result.outcome for result in results]
    outcomes += [finding.outcome for result in results for finding in result.findings]
    return worst(tuple(outcomes)) if _looked(results) else worst((Outcome.ERROR, *outcomes))


def exit_status(report: Report, plan: PreflightPlan) -> ExitStatus:
    """The gate's exit status for scripts: 0 open, 1 failed, 3 no verdict."""
    verdict = judge_results(report.results)
    contradicted = verdict is not report.verdict
    if contradicted:
        verdict = worst((verdict, report.verdict, Outcome.ERROR))
    if _fails(report, plan, verdict):
        return ExitStatus.FAIL
    # Even if the report has a finding that this gate does not count.
    if contradicted or not _looked(report.results):
        return ExitStatus.ERROR
    if verdict is Outcome.ERROR or any(result.outcome is Outcome.ERROR for result in report.results):
        return ExitStatus.ERROR
    if plan.strict and verdict is Outcome.WARN:
        return ExitStatus.FAIL
    if plan.strict and any(result.is_gap for result in report.results):
        return ExitStatus.ERROR
    return ExitStatus.PASS


def describe_strict(report: Report, plan: PreflightPlan, status: ExitStatus) -> str:
    """Why `--strict` alone gives that exit status: warnings, or skipped checks; empty where it does not."""
    if not plan.strict or status is exit_status(report, replace(plan, strict=False)):
        return ""
    if status is ExitStatus.FAIL:
        codes = dict.fromkeys(
            finding.code for finding in report.findings() if finding.outcome is Outcome.WARN
        )
        return f"exit status 1 because of --strict, which counts a warning as a failure: {', '.join(codes)}"
    gaps: dict[str, list[str]] = {}
    for result in report.results:
        if result.is_gap:
            gaps.setdefault(result.reason or "no reason given", []).append(result.check)
    words = "; ".join(f"{', '.join(checks)} ({reason})" for reason, checks in gaps.items())
    return f"exit status 3 because of --strict, for these checks apply here and were skipped: {words}"


def worst_status(statuses: Iterable[ExitStatus]) -> ExitStatus:
    """The exit status of several machines: failed if any failed, else unknown if any is unknown."""
    found = set(statuses)
    if ExitStatus.FAIL in found:
        return ExitStatus.FAIL
    return ExitStatus.PASS if found == {ExitStatus.PASS} else ExitStatus.ERROR


def is_good_state(report: Report) -> bool:
    """Whether later runs should compare the machine with its state in this one.

    A change since the last good run must be reported again until a person accepts it or undoes it.
    """
    if report.verdict not in (Outcome.PASS, Outcome.WARN):
        return False
    return not any(finding.code in _UNACCEPTED for finding in report.findings())


def _looked(results: Sequence[CheckResult]) -> bool:
    """Whether any check was really run."""
    return any(result.outcome is not Outcome.SKIP for result in results)


def _fails(report: Report, plan: PreflightPlan, verdict: Outcome) -> bool:
    if plan.fail_on == "any":
        return verdict is Outcome.FAIL
    if any(plan.fails_on(finding) for finding in report.findings()):
        return True
    return plan.fail_on == "machine" and any(_fails_without_words(result) for result in report.results)


def _fails_without_words(result: CheckResult) -> bool:
    """Whether a check is FAIL without a finding that shows why."""
    if result.outcome is not Outcome.FAIL or result.reported_by:
        return False
    return not any(finding.outcome is Outcome.FAIL for finding in result.findings)
