"""The comparison of strategies as Markdown, for a README or a pull request."""

from gpudiag.model.training import TrainingReport
from gpudiag.render.report_words import say_subject_and_host
from gpudiag.render.training_words import HEADINGS, cells, group_reasons, headline


def render_training_markdown(report: TrainingReport) -> str:
    """The verdict, the table with the code that each strategy needs, and the findings."""
    lines = []
    if report.strategies or report.script:
        lines = [f"**{report.outcome.value.upper()}** {headline(report)}", ""]
    if report.strategies:
        headings = [*(heading.capitalize() for heading in HEADINGS), "Code needed"]
        lines += [_row(headings), _row(["---"] * len(headings))]
        lines += [_row([*cells(result), result.code_needed]) for result in report.strategies]
        lines.append("")
    lines += [f"- {', '.join(names)}: {words}" for words, names in group_reasons(report.strategies).items()]
    lines += [
        f"- `{finding.code}` {say_subject_and_host(finding.subject)}: {finding.message}. {finding.remedy}"
        for finding in report.findings
    ]
    lines += [f"- use {advice.strategy}: {'; '.join(advice.reasons)}" for advice in report.advice]
    lines += ["", f"On {', '.join(report.machine)}."]
    return "\n".join(lines) + "\n"


def _row(values: list[str]) -> str:
    return "| " + " | ".join(value.replace("|", "\\|") for value in values) + " |"
