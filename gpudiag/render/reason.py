"""A report as one line: the reason of a drained Slurm node, a Kubernetes message, a line in a log."""

import re

from gpudiag.model.finding import Outcome
from gpudiag.model.report import Report
from gpudiag.render.one_line import one_ascii_line
from gpudiag.render.report_words import (
    coverage,
    faults_worst_first,
    say_machine,
    say_reason,
    say_where_and_what,
)

MAX_CHARACTERS = 240
# What a shell, scontrol or a reader of `key=value` could take for more than text.
_UNSAFE = re.compile(r"""[\\'"`$;&|<>*?{}\[\]!~^]""")


def render_reason(report: Report) -> str:
    """One line of printable ASCII without quotes: verdict, the worst finding, how many more there are."""
    words = f"gpudiag {report.verdict.value.upper()} {_what(report)}"
    # The marks that stand for other characters go as well: a reason is read, not parsed.
    return one_ascii_line(_UNSAFE.sub("", one_ascii_line(words)), MAX_CHARACTERS) + "\n"


def _what(report: Report) -> str:
    machine = say_machine(report)
    prefix = f"{machine}: " if machine else ""
    faults = [finding for finding in faults_worst_first(report) if finding.outcome is report.verdict]
    if faults:
        first, more = faults[0], len(faults) - 1
        also = f" (+{more} more)" if more else ""
        return f"{prefix}{first.code}{also}: {say_where_and_what(first)}"
    errors = [result for result in report.results if result.outcome is Outcome.ERROR]
    if report.verdict is Outcome.ERROR and errors:
        return f"{prefix}{errors[0].check}: {say_reason(errors[0])}"
    return f"{prefix}{coverage(report).sentence()}"
