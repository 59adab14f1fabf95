"""A report as Markdown, for the summary page of a CI job."""

import re

from gpudiag.model.finding import Finding
from gpudiag.model.report import Report
from gpudiag.render.report_words import (
    coverage,
    describe_machine,
    describe_message,
    describe_owners,
    describe_reason,
    faults_worst_first,
)
from gpudiag.render.style import one_line
from gpudiag.render.told_once import Told, tell_once

MAX_FINDINGS = 50  # GitHub cuts a summary at 1 MiB
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#!|~&$@])")


def render_markdown(report: Report) -> str:
    """The verdict, what failed, and every check in a fold."""
    faults = faults_worst_first(report)
    covered = coverage(report)
    parts = [_heading(report, faults), f"{escape_markdown(covered.sentence())}."]
    if faults:
        told = tell_once(faults)
        parts.append(_findings_table(told[:MAX_FINDINGS]))
        left = sum(one.count for one in told[MAX_FINDINGS:])
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


def _findings_table(told: tuple[Told, ...]) -> str:
    rows = ["| outcome | code | where | what | evidence | do |", "| --- | --- | --- | --- | --- | --- |"]
    for one in told:
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
        reason = escape_markdown(describe_reason(result)) if result.reason else ""
        rows.append(f"| {result.outcome.value.upper()} | {escape_markdown(result.check)} | {reason} |")
    table = "\n".join(rows)
    return f"<details><summary>All {len(report.results)} checks</summary>\n\n{table}\n\n</details>"
