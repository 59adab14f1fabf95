"""What a preflight prints and writes: the report in the wanted format, files, and sentences on standard error."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from gpudiag.errors import GpudiagError
from gpudiag.model.preflight_plan import LEVELS
from gpudiag.render.report_formats import render_report

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gpudiag.model.merged import MergedReport
    from gpudiag.model.preflight_plan import PreflightPlan
    from gpudiag.model.report import Report


def render_one(form: str, report: Report, plan: PreflightPlan) -> str:
    """The report of one machine in that format, or `reason`: why the plan's gate says what it says."""
    if form == "reason":
        from gpudiag.render.reason import render_reason

        return render_reason(report, plan)
    if form != "text":
        return render_report(form, report)
    from gpudiag.render.report_text import render_report_text
    from gpudiag.render.style import Style, wants_colour

    return render_report_text(report, Style(wants_colour(sys.stdout.isatty(), dict(os.environ))))


def write_reports(report: Report, reports: tuple[tuple[str, Path], ...]) -> bool:
    """Whether every report could be written; where one could not, that is said and the others are tried."""
    from gpudiag.runs.output import write_document

    written = True
    for form, path in reports:
        try:
            write_document(path, render_report(form, report))
        except GpudiagError as error:
            warn(error.message)
            written = False
    return written


def sayer(plan: PreflightPlan) -> Callable[[str], None]:
    """Says what comes next and its cost: on a terminal, and before anything that takes minutes."""
    loud = sys.stderr.isatty() or plan.level in LEVELS[2:]
    return warn if loud else lambda _: None


def warn(sentence: str) -> None:
    """Say the sentence on standard error."""
    print(f"gpudiag: {sentence}", file=sys.stderr)


def render_several(form: str, merged: MergedReport) -> str:
    """The report of several machines, as text or as its document."""
    from gpudiag.model.codec import dumps
    from gpudiag.render.merged_text import render_merged
    from gpudiag.render.style import Style, wants_colour

    if form == "json":
        return dumps(merged) + "\n"
    return render_merged(merged, Style(wants_colour(sys.stdout.isatty(), dict(os.environ))))
