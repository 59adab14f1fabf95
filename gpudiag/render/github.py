"""A report as GitHub annotations: workflow commands that a runner reads from standard output."""

from gpudiag.model.finding import CheckResult, Finding, Outcome
from gpudiag.model.report import Report
from gpudiag.render.report_words import (
    coverage,
    describe_machine,
    describe_reason,
    describe_remedy,
    describe_where_and_what,
    faults_worst_first,
)
from gpudiag.render.style import one_line

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
    words = f"{report.verdict.value.upper()}{f' {machine}' if machine else ''} on {one_line(report.snapshot.host)}"
    return _command("notice", "gpudiag", f"{words}: {coverage(report).sentence()}")


def _finding(finding: Finding) -> tuple[str, str]:
    level = _LEVELS[finding.outcome]
    title = f"{finding.outcome.value.upper()} {finding.code}"
    text = f"{describe_where_and_what(finding)}. Do: {describe_remedy(finding)}"
    return level, _command(level, title, text)


def _unlooked(result: CheckResult) -> tuple[str, str]:
    return "error", _command("error", f"ERROR {result.check}", f"could not look: {describe_reason(result)}")


def _command(level: str, title: str, text: str) -> str:
    return f"::{level} title={escape_property(one_line(title))}::{escape(one_line(text))}"


def escape(text: str) -> str:
    """The text with the characters that end a workflow command or start an escape encoded; the runner decodes them."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def escape_property(text: str) -> str:
    """The text of a property of a command, which a colon or a comma would end."""
    return escape(text).replace(":", "%3A").replace(",", "%2C")
