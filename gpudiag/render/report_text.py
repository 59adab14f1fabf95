"""A report as text: verdict and owner, what failed and what to do, what was not looked at, what to type next."""

from itertools import zip_longest

from gpudiag.model.finding import Finding, Outcome
from gpudiag.model.report import Report
from gpudiag.render.one_line import one_line
from gpudiag.render.report_words import (
    Coverage,
    coverage,
    faults_worst_first,
    say_fact,
    say_machine,
    say_message,
    say_owners,
    say_remedy,
    say_subject,
)
from gpudiag.render.style import PLAIN, Style, next_lines, wrapped

MAX_FINDINGS = 20  # shown whole; `--format json` has all
# Where more share one reason, their number tells enough; every document names them all.
_MAX_SKIPPED_NAMED = 2
_MAX_ERRORS_NAMED = 6
_COLOURS = {Outcome.PASS: "green", Outcome.WARN: "yellow", Outcome.FAIL: "red", Outcome.ERROR: "red"}


def render_report_text(report: Report, style: Style = PLAIN) -> str:
    """The whole report, at most 80 columns wide where words allow."""
    faults = faults_worst_first(report)
    covered = coverage(report)
    lines = _verdict(report, faults, covered, style)
    for subject, findings in _by_subject(faults[:MAX_FINDINGS]).items():
        lines += ["", *wrapped(subject)]
        for finding, following in zip_longest(findings, findings[1:]):
            lines += _finding(subject, finding, style)
            if following is None or say_remedy(following) != say_remedy(finding):  # told once, after the last
                lines += wrapped(say_remedy(finding), first="    Do: ", indent="        ")
    if len(faults) > MAX_FINDINGS:
        lines += ["", f"and {len(faults) - MAX_FINDINGS} more findings: --format json has all"]
    lines += ["", *_coverage(covered)]
    return "\n".join([*lines, *_next(report, faults)]) + "\n"


def _verdict(report: Report, faults: tuple[Finding, ...], covered: Coverage, style: Style) -> list[str]:
    word = report.verdict.value.upper()
    machine = say_machine(report)
    worst = tuple(finding for finding in faults if finding.outcome is report.verdict)
    who = f"{say_owners(worst)} must act, " if worst else ""
    found = f"{_counted(len(faults), 'finding')} in {_extent(covered, len(report.results))}"
    prefix = f"{machine} " if machine else ""
    text = f"{word} {prefix}{one_line(report.snapshot.host, 100)}: {who}{found}"
    lines = wrapped(text, indent="  ")
    lines[0] = style.paint(word, _COLOURS.get(report.verdict, "bold")) + lines[0][len(word) :]
    if report.snapshot.simulated:
        lines.append("  no real GPU was read")
    return lines


def _extent(covered: Coverage, checks: int) -> str:
    """`9 of 81 checks, 7 could not look`: nobody is to take for judged what was skipped."""
    share = f"{covered.looked} of " if covered.looked < checks else ""
    blind = sum(len(names) for names in covered.errors.values())
    return f"{share}{_counted(checks, 'check')}" + (f", {blind} could not look" if blind else "")


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _by_subject(findings: tuple[Finding, ...]) -> dict[str, list[Finding]]:
    """The findings by what they are about, so that a sick GPU is one paragraph."""
    groups: dict[str, list[Finding]] = {}
    for finding in findings:
        groups.setdefault(say_subject(finding.subject), []).append(finding)
    return groups


def _finding(subject: str, finding: Finding, style: Style) -> list[str]:
    word = finding.outcome.value.upper()
    message = say_message(finding).removeprefix(f"{subject}: ")  # it stands in the line above
    lines = wrapped(f"{word} {one_line(finding.code)}: {message}", first="  ", indent="    ") or ["  "]
    lines[0] = lines[0].replace(word, style.paint(word, _COLOURS.get(finding.outcome, "bold")), 1)
    for fact in finding.evidence:
        lines += wrapped(say_fact(fact), first="    - ", indent="      ")
    return lines


def _coverage(covered: Coverage) -> list[str]:
    lines = wrapped(f"Coverage: {covered.sentence()}")
    for word, reasons, most in (
        ("could not look", covered.errors, _MAX_ERRORS_NAMED),
        ("skipped", covered.skipped, _MAX_SKIPPED_NAMED),
    ):
        for reason, checks in reasons.items():
            named = f" ({', '.join(checks)})" if len(checks) <= most else ""
            lines += wrapped(f"{len(checks)} {word}: {reason}{named}", first="  ", indent="    ")
    return lines


def _next(report: Report, faults: tuple[Finding, ...]) -> list[str]:
    if faults:
        codes = list(dict.fromkeys(one_line(finding.code) for finding in faults))
        return next_lines(f"gpudiag explain {codes[0]}", "gpudiag list --wide")
    if report.verdict is Outcome.PASS:
        return next_lines("gpudiag nccl-test", "gpudiag list")
    return next_lines("gpudiag list --sources all")
