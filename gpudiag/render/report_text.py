"""A report as text: verdict, owner, what failed, what to do, what was not looked at, what to type next."""

from collections import Counter
from itertools import zip_longest

from gpudiag.checks import BUILTIN
from gpudiag.checks.gpu.state import findings_about
from gpudiag.installed import has_module
from gpudiag.model.finding import CheckResult, Finding, JoinedFinding, Outcome, Owner
from gpudiag.model.number_ranges import count_of
from gpudiag.model.report import Report
from gpudiag.render.devices_text import describe_board
from gpudiag.render.joined_findings import join_findings
from gpudiag.render.report_words import (
    MAX_TEXT_CHARACTERS,
    Coverage,
    coverage,
    describe_machine,
    describe_owners,
    faults_worst_first,
    is_cpu_only,
)
from gpudiag.render.style import PLAIN, Style, next_lines, one_line, wrapped

MAX_FINDINGS = 20  # shown whole; `--verbose` has all
_OF_TESTS = {"active", "collective", "training"}  # what checks need that judge a test, and not readings
_ACTIVE = frozenset(check.name for check in BUILTIN if _OF_TESTS & set(check.needs))
_COVERAGE = "active.coverage"  # the check that reports it for all tests
_MAX_ERRORS_NAMED = 6  # where more share one reason, their number is enough; `--verbose` names them all


def render_report_text(report: Report, style: Style = PLAIN) -> str:
    """The whole report, as wide as the terminal.

    A verbose one has every finding, and why each check was skipped.
    """
    faults = faults_worst_first(report)
    covered = coverage(report)
    lines = _verdict(report, faults, covered, style)
    joined = join_findings(faults)
    shown = joined[: style.most(MAX_FINDINGS)]
    for subject, about in _by_subject(shown).items():
        lines += ["", *wrapped(f"{subject}{_board_of(report, about)}")]
        for one, following in zip_longest(about, about[1:]):
            lines += _finding(one, style)
            if following is None or following.remedy != one.remedy:  # printed once, after the last
                lines += wrapped(one.remedy, first="    Do: ", indent="        ")
    if len(joined) > len(shown):
        left = sum(one.count for one in joined[len(shown) :])
        lines += ["", f"and {left} more findings: --verbose has all"]
    lines += ["", *_coverage(report, covered, verbose=style.verbose)]
    return "\n".join([*lines, *_next(report, faults)]) + "\n"


def _verdict(report: Report, faults: tuple[Finding, ...], covered: Coverage, style: Style) -> list[str]:
    word = report.verdict.value.upper()
    machine = describe_machine(report)
    worst = tuple(finding for finding in faults if finding.outcome is report.verdict)
    who = f"{describe_owners(worst)} must act, " if worst else ""
    found = f"{count_of(len(faults), 'finding')} in {_extent(covered, len(report.results))}"
    prefix = f"{machine} " if machine else ""
    text = f"{word} {prefix}{one_line(report.snapshot.host, 100)}: {who}{found}"
    lines = wrapped(text, indent="  ")
    lines[0] = style.paint_outcome(lines[0], report.verdict.value)
    if report.snapshot.simulated:
        lines.append("  no real GPU was read")
    if report.verdict is Outcome.PASS and not _is_tested(report):
        lines += wrapped(f"  Not tested: speed, data, network{_why_untested(report)}", indent="    ")
    return lines


def _active(report: Report) -> list[CheckResult]:
    """The results of checks that need a test to run, and not only readings."""
    return [result for result in report.results if result.check in _ACTIVE]


def _is_tested(report: Report) -> bool:
    """Whether a test ran: a PASS by readings alone proves less."""
    return any(result.outcome not in (Outcome.SKIP, Outcome.ERROR) for result in _active(report))


def _why_untested(report: Report) -> str:
    reasons = Counter(result.reason for result in _active(report) if result.reason)
    if not reasons:
        return "" if _active(report) else " (level instant: readings only)"
    return f" ({one_line(reasons.most_common(1)[0][0], MAX_TEXT_CHARACTERS)})"


def _extent(covered: Coverage, checks: int) -> str:
    """How much was judged: `9 of 81 checks, 7 without a result`; skipped checks judged nothing."""
    share = f"{covered.looked} of " if covered.looked < checks else ""
    blind = sum(len(names) for names in covered.errors.values())
    unread = sum(map(len, covered.unread.values()))
    return (
        f"{share}{count_of(checks, 'check')}"
        + (f", {blind} without a result" if blind else "")
        + (f", {unread} not run without the history" if unread else "")
    )


def _by_subject(joined: tuple[JoinedFinding, ...]) -> dict[str, list[JoinedFinding]]:
    """The faults by subject, so that a faulty GPU is one paragraph."""
    groups: dict[str, list[JoinedFinding]] = {}
    for one in joined:
        groups.setdefault(one.subject, []).append(one)
    return groups


def _board_of(report: Report, joined: list[JoinedFinding]) -> str:
    """UUID and serial number of a GPU whose board may have to go: what its vendor asks for first."""
    is_one = all(one.count == 1 for one in joined)
    if not (is_one and any(one.finding.owner is Owner.HARDWARE for one in joined)):
        return ""
    of_device = (one for one in report.snapshot.devices if findings_about(one, [joined[0].finding]))
    device = next(of_device, None)
    return "" if device is None else describe_board(device)


def _finding(joined: JoinedFinding, style: Style) -> list[str]:
    word = joined.finding.outcome.value.upper()
    code = one_line(joined.finding.code)
    lines = wrapped(f"{word} {code}: {joined.message}", first="  ", indent="    ") or ["  "]
    lines[0] = style.paint_outcome(lines[0], joined.finding.outcome.value)
    for fact in joined.facts:
        lines += wrapped(fact, first="    - ", indent="      ")
    return lines


def _coverage(report: Report, covered: Coverage, *, verbose: bool) -> list[str]:
    """What was not looked at: all of it where that is wanted, else only what a person should act on."""
    if verbose:
        lines = wrapped(f"Coverage: {covered.sentence()}")
        for word, reasons in (("without a result", covered.errors), ("skipped", covered.skipped)):
            lines += _reasons(word, reasons, most_named=None)
        for result in report.results:
            if result.outcome is Outcome.PASS and result.reason:
                lines += wrapped(
                    f"Note: {one_line(result.reason, MAX_TEXT_CHARACTERS)} ({result.check})", indent="  "
                )
        return lines
    errors = dict(covered.errors)
    if report.verdict is Outcome.FAIL:  # the fault covers what follows from it
        errors = {reason: checks for reason, checks in errors.items() if reason not in covered.of_nvml}
    lines = _reasons("without a result", errors, most_named=_MAX_ERRORS_NAMED)
    left_out = sum(len(checks) for checks in covered.errors.values()) - sum(map(len, errors.values()))
    if left_out:
        lines += wrapped(f"{count_of(left_out, 'check')} gave no result because of that.", indent="  ")
    lines += _reasons("skipped", covered.unread, most_named=_MAX_ERRORS_NAMED)
    lines += _not_tested(covered.in_use)
    lines += _reasons("skipped", covered.forbidden, most_named=_MAX_ERRORS_NAMED)
    skipped = sum(len(checks) for checks in covered.skipped.values())
    if skipped:
        was = "was" if skipped == 1 else "were"
        lines += wrapped(f"{count_of(skipped, 'check')} {was} skipped: --verbose shows why.", indent="  ")
    return lines


def _not_tested(in_use: dict[str, tuple[str, ...]]) -> list[str]:
    """Which GPUs no test ran on because others use them, once: a PASS of the rest is none of theirs."""
    whole = [reason for reason in in_use if _COVERAGE in in_use[reason]] or list(in_use)[:1]
    return [line for reason in whole for line in wrapped(f"{reason[0].upper()}{reason[1:]}", indent="  ")]


def _reasons(word: str, reasons: dict[str, tuple[str, ...]], most_named: int | None) -> list[str]:
    """A line per reason, with the checks; of more than `most_named` only how many."""
    lines: list[str] = []
    for reason, checks in reasons.items():
        named = f" ({', '.join(checks)})" if most_named is None or len(checks) <= most_named else ""
        lines += wrapped(f"{len(checks)} {word}: {reason}{named}", indent="  ")
    return lines


def _next(report: Report, faults: tuple[Finding, ...]) -> list[str]:
    if faults:
        codes = list(dict.fromkeys(one_line(finding.code) for finding in faults))
        return next_lines(f"gpudiag explain {codes[0]}", "gpudiag list --wide")
    if report.verdict is Outcome.PASS:
        return next_lines("gpudiag nccl-test" if has_module("torch") else "gpudiag doctor", "gpudiag list")
    own = ["gpudiag preflight --expect-gpus 0"] if is_cpu_only(report) else []
    return next_lines("gpudiag list --sources all", *own)
