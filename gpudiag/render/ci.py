"""A report as CI systems read it: JUnit XML, GitHub annotations, and Markdown for a summary page.

By Jenkins' junit-10.xsd a test case has one failure (FAIL), error (ERROR) or skipped element, times have
three decimals. WARN passes with a system-out; a check whose faults another check reports is skipped, and
names it.
"""

import re
from collections.abc import Iterable
from xml.etree import ElementTree

from gpudiag.compat import UTC
from gpudiag.model.finding import CheckResult, Finding, JoinedFinding, Outcome
from gpudiag.model.reading import Missing
from gpudiag.model.report import Report
from gpudiag.render.joined_findings import join_findings
from gpudiag.render.report_words import (
    coverage,
    describe_fact,
    describe_machine,
    describe_message,
    describe_owners,
    describe_reason,
    describe_remedy,
    describe_where_and_what,
    faults_worst_first,
    finite_seconds,
)
from gpudiag.render.style import one_line

# --- GitHub annotations

# GitHub shows at most ten errors and ten warnings of one step.
MAX_ANNOTATIONS = 10
_LEVELS = {Outcome.FAIL: "error", Outcome.ERROR: "error", Outcome.WARN: "warning"}


def render_github(report: Report) -> str:
    """One annotation per finding, worst first, and a notice with the verdict."""
    faults = faults_worst_first(report)
    unlooked = [
        result for result in report.results if result.outcome is Outcome.ERROR and not result.findings
    ]
    annotations = [*(_finding(finding) for finding in faults), *(_unlooked(result) for result in unlooked)]
    lines: list[str] = []
    for level in ("error", "warning"):
        of_level = [line for kind, line in annotations if kind == level]
        lines += of_level[:MAX_ANNOTATIONS]
    return "\n".join([_verdict(report), *lines]) + "\n"


def _verdict(report: Report) -> str:
    machine = describe_machine(report)
    words = (
        f"{report.verdict.value.upper()}{f' {machine}' if machine else ''} on"
        f" {one_line(report.snapshot.host)}"
    )
    return _command("notice", "gpudiag", f"{words}: {coverage(report).sentence()}")


def _finding(finding: Finding) -> tuple[str, str]:
    level = _LEVELS[finding.outcome]
    title = f"{finding.outcome.value.upper()} {finding.code}"
    text = f"{describe_where_and_what(finding)}. Do: {describe_remedy(finding)}"
    return level, _command(level, title, text)


def _unlooked(result: CheckResult) -> tuple[str, str]:
    return "error", _command("error", f"ERROR {result.check}", f"no result: {describe_reason(result)}")


def _command(level: str, title: str, text: str) -> str:
    return f"::{level} title={escape_property(one_line(title))}::{escape(one_line(text))}"


def escape(text: str) -> str:
    """The text with the characters that end a workflow command or start an escape encoded.

    The runner decodes them.
    """
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def escape_property(text: str) -> str:
    """The text of a property of a command, which a colon or a comma would end."""
    return escape(text).replace(":", "%3A").replace(",", "%2C")


# --- Markdown

MAX_FINDINGS = 50  # GitHub cuts a summary at 1 MiB
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#!|~&$@])")


def render_markdown(report: Report) -> str:
    """The verdict, what failed, and every check in a fold."""
    faults = faults_worst_first(report)
    covered = coverage(report)
    parts = [_heading(report, faults), f"{escape_markdown(covered.sentence())}."]
    if faults:
        joined = join_findings(faults)
        parts.append(_findings_table(joined[:MAX_FINDINGS]))
        left = sum(one.count for one in joined[MAX_FINDINGS:])
        if left:
            parts.append(f"And {left} more findings: the JSON report has all.")
    parts.append(_checks_fold(report))
    return "\n\n".join(parts) + "\n"


def escape_markdown(text: str) -> str:
    """`text` on one line, every character that Markdown could read as more than itself escaped."""
    return _SPECIAL.sub(r"\\\1", one_line(text))


def _heading(report: Report, faults: tuple[Finding, ...]) -> str:
    worst = tuple(finding for finding in faults if finding.outcome is report.verdict)
    host = escape_markdown(report.snapshot.host)
    who = f", {escape_markdown(describe_owners(worst))} must act" if worst else ""
    lines = [f"## gpudiag: {report.verdict.value.upper()} on {host}{who}"]
    machine = describe_machine(report)
    if machine:
        lines += ["", f"**{escape_markdown(machine)}**"]
    return "\n".join(lines)


def _findings_table(joined: tuple[JoinedFinding, ...]) -> str:
    rows = ["| outcome | code | where | what | evidence | do |", "| --- | --- | --- | --- | --- | --- |"]
    for one in joined:
        message = one.message if one.count > 1 else describe_message(one.finding)
        cells = (
            one.finding.outcome.value.upper(),
            escape_markdown(one.finding.code),
            escape_markdown(one.subject),
            escape_markdown(message),
            "<br>".join(map(escape_markdown, one.facts)),
            escape_markdown(one.remedy),
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _checks_fold(report: Report) -> str:
    rows = ["| outcome | check | reason |", "| --- | --- | --- |"]
    for result in report.results:
        codes = ", ".join(dict.fromkeys(one_line(finding.code) for finding in result.findings))
        words = [part for part in (codes, describe_reason(result) if result.reason else "") if part]
        reason = escape_markdown("; ".join(words))
        rows.append(f"| {result.outcome.value.upper()} | {escape_markdown(result.check)} | {reason} |")
    table = "\n".join(rows)
    return f"<details><summary>All {len(report.results)} checks</summary>\n\n{table}\n\n</details>"


# --- JUnit

_SUITE = "gpudiag preflight"
_ELEMENTS = {Outcome.FAIL: "failure", Outcome.ERROR: "error", Outcome.SKIP: "skipped"}
_COUNTS = {"failures": Outcome.FAIL, "errors": Outcome.ERROR, "skipped": Outcome.SKIP}


def render_junit(report: Report) -> str:
    """The whole document, with its XML declaration."""
    results = _with_verdict(report)
    seconds = sum(finite_seconds(result.seconds) for result in results)
    shown = [_shown_as(result) for result in results]
    counts = {name: sum(one is outcome for one in shown) for name, outcome in _COUNTS.items()}
    attributes = {"name": _SUITE, "tests": str(len(results)), "time": _time(seconds)}
    # <testsuites> has no `skipped`.
    overall = {name: str(counts[name]) for name in ("failures", "errors")}
    root = ElementTree.Element("testsuites", {**attributes, **overall})
    moment = report.snapshot.taken_at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S")
    suite = ElementTree.SubElement(
        root,
        "testsuite",
        {
            **attributes,
            **{name: str(count) for name, count in counts.items()},
            "timestamp": moment,
            "hostname": one_line(report.snapshot.host),
        },
    )
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in _properties(report).items():
        ElementTree.SubElement(properties, "property", {"name": name, "value": one_line(value)})
    for result in results:
        _add_case(suite, result)
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _with_verdict(report: Report) -> tuple[CheckResult, ...]:
    """The results, with a case for the verdict itself where no check's has it: readers see only cases."""
    shown = {result.outcome for result in report.results}
    if report.verdict in shown or (report.verdict is Outcome.PASS and report.results):
        return report.results
    reason = (
        f"the verdict is {report.verdict.value}: {len(report.results)} checks,"
        " and none of them gives that verdict"
    )
    outcome = report.verdict if report.verdict in (Outcome.FAIL, Outcome.WARN) else Outcome.ERROR
    return (CheckResult("verdict", outcome, reason=reason), *report.results)


def _properties(report: Report) -> dict[str, str]:
    snapshot = report.snapshot
    driver = snapshot.driver_version
    return {
        "verdict": report.verdict.value,
        "gpus": str(len(snapshot.devices)),
        **({} if isinstance(driver, Missing) else {"driver_version": driver}),
        **({"simulated": snapshot.simulated} if snapshot.simulated else {}),
    }


def _shown_as(result: CheckResult) -> Outcome:
    """The outcome of a test case: SKIP where another case is the failure."""
    return Outcome.SKIP if result.reported_by and not result.findings else result.outcome


def _add_case(suite: ElementTree.Element, result: CheckResult) -> None:
    name = one_line(result.check) or "unnamed"
    group = name.partition(".")[0]
    case = ElementTree.SubElement(
        suite,
        "testcase",
        {"classname": f"gpudiag.{group}", "name": name, "time": _time(finite_seconds(result.seconds))},
    )
    details = "\n".join(_describe(result.findings))
    outcome = _shown_as(result)
    element = _ELEMENTS.get(outcome)
    if element is not None:
        attributes = {"message": _headline(result)}
        if outcome is not Outcome.SKIP:
            attributes["type"] = one_line(result.findings[0].code) if result.findings else "error"
        ElementTree.SubElement(case, element, attributes).text = details or None
    elif details or outcome is Outcome.WARN:
        ElementTree.SubElement(case, "system-out").text = details or _headline(result)


def _headline(result: CheckResult) -> str:
    """The worst finding's sentence, or the reason."""
    if not result.findings:
        return describe_reason(result)
    more = len(result.findings) - 1
    return describe_where_and_what(result.findings[0]) + (f" (and {more} more)" if more else "")


def _describe(findings: Iterable[Finding]) -> list[str]:
    lines: list[str] = []
    for finding in findings:
        word = finding.outcome.value.upper()
        lines.append(f"{word} {one_line(finding.code)}: {describe_where_and_what(finding)}")
        lines += [f"  - {describe_fact(fact)}" for fact in finding.evidence]
        lines.append(f"  owner: {finding.owner.value}; do: {describe_remedy(finding)}")
    return lines


def _time(seconds: float) -> str:
    return f"{seconds:.3f}"
