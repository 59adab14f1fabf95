"""A report as text: verdict and owner, what failed and what to do, what was not looked at, what to type next."""

from itertools import zip_longest

from gpudiag.model.finding import Finding, Outcome
from gpudiag.model.history import UNREAD
from gpudiag.model.report import Report
from gpudiag.render.report_words import (
    Coverage,
    coverage,
    describe_machine,
    describe_owners,
    faults_worst_first,
    is_cpu_only,
)
from gpudiag.render.style import PLAIN, Style, next_lines, one_line, wrapped
from gpudiag.render.told_once import Told, tell_once

MAX_FINDINGS = 20  # shown whole; `--format json` has all
# Where more share one reason, their number is enough; every document names them all.
_MAX_SKIPPED_NAMED = 2
_MAX_ERRORS_NAMED = 6


def render_report_text(report: Report, style: Style = PLAIN) -> str:
    """The whole report, at most 80 columns wide where words allow."""
    faults = faults_worst_first(report)
    covered = coverage(report)
    lines = _verdict(report, faults, covered, style)
    told = tell_once(faults)
    for subject, about in _by_subject(told[:MAX_FINDINGS]).items():
        lines += ["", *wrapped(subject)]
        for one, following in zip_longest(about, about[1:]):
            lines += _finding(one, style)
            if following is None or following.remedy != one.remedy:  # printed once, after the last
                lines += wrapped(one.remedy, first="    Do: ", indent="        ")
    if len(told) > MAX_FINDINGS:
        left = sum(one.count for one in told[MAX_FINDINGS:])
        lines += ["", f"and {left} more findings: --format json has all"]
    lines += ["", *_coverage(covered)]
    return "\n".join([*lines, *_next(report, faults)]) + "\n"


def _verdict(report: Report, faults: tuple[Finding, ...], covered: Coverage, style: Style) -> list[str]:
    word = report.verdict.value.upper()
    machine = describe_machine(report)
    worst = tuple(finding for finding in faults if finding.outcome is report.verdict)
    who = f"{describe_owners(worst)} must act, " if worst else ""
    found = f"{_counted(len(faults), 'finding')} in {_extent(covered, len(report.results))}"
    prefix = f"{machine} " if machine else ""
    text = f"{word} {prefix}{one_line(report.snapshot.host, 100)}: {who}{found}"
    lines = wrapped(text, indent="  ")
    lines[0] = style.paint_outcome(lines[0], report.verdict.value)
    if report.snapshot.simulated:
        lines.append("  no real GPU was read")
    return lines


def _extent(covered: Coverage, checks: int) -> str:
    """How much was judged: `9 of 81 checks, 7 could not look`; skipped checks judged nothing."""
    share = f"{covered.looked} of " if covered.looked < checks else ""
    blind = sum(len(names) for names in covered.errors.values())
    unread = sum(len(names) for reason, names in covered.skipped.items() if reason.startswith(UNREAD))
    return (
        f"{share}{_counted(checks, 'check')}"
        + (f", {blind} could not look" if blind else "")
        + (f", {unread} not run without {UNREAD}" if unread else "")
    )


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _by_subject(told: tuple[Told, ...]) -> dict[str, list[Told]]:
    """The faults by subject, so that a faulty GPU is one paragraph."""
    groups: dict[str, list[Told]] = {}
    for one in told:
        groups.setdefault(one.subject, []).append(one)
    return groups


def _finding(told: Told, style: Style) -> list[str]:
    word = told.finding.outcome.value.upper()
    code = one_line(told.finding.code)
    lines = wrapped(f"{word} {code}: {told.message}", first="  ", indent="    ") or ["  "]
    lines[0] = style.paint_outcome(lines[0], told.finding.outcome.value)
    for fact in told.facts:
        lines += wrapped(fact, first="    - ", indent="      ")
    return lines


def _coverage(covered: Coverage) -> list[str]:
    lines = wrapped(f"Coverage: {covered.sentence()}")
    for word, reasons, most in (
        ("could not look", covered.errors, _MAX_ERRORS_NAMED),
        ("skipped", covered.skipped, _MAX_SKIPPED_NAMED),
    ):
        for reason, checks in reasons.items():
            told = len(checks) <= most or reason.startswith(UNREAD)
            named = f" ({', '.join(checks)})" if told else ""
            lines += wrapped(f"{len(checks)} {word}: {reason}{named}", first="  ", indent="    ")
    return lines


def _next(report: Report, faults: tuple[Finding, ...]) -> list[str]:
    if faults:
        codes = list(dict.fromkeys(one_line(finding.code) for finding in faults))
        return next_lines(f"gpudiag explain {codes[0]}", "gpudiag list --wide")
    if report.verdict is Outcome.PASS:
        return next_lines("gpudiag nccl-test", "gpudiag list")
    own = ["gpudiag preflight --expect-gpus 0"] if is_cpu_only(report) else []
    return next_lines("gpudiag list --sources all", *own)
