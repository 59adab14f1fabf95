"""The formats of a report by name, for `--format`, `--report` and the service.

Each is imported when wanted.
"""

from importlib import import_module
from math import isfinite
from typing import Any

from gpudiag.model.codec import dump_document, to_document
from gpudiag.model.job import HangReport
from gpudiag.model.job_run import JobRun
from gpudiag.model.report import CollectiveReport, Report
from gpudiag.model.training import TrainingReport

# --- JSON


def render_json(report: Report) -> str:
    """The document `gpudiag.report/1`; a number that JSON does not have becomes the text `nan` or `inf`."""
    return dump_document(finite(to_document(report))) + "\n"


def finite(value: Any) -> Any:
    """The value with `nan` and `inf` as text: one bad measurement must not cost the whole report."""
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return value


# --- all formats by name

_PLACES = {
    "text": "gpudiag.render.report_text:render_report_text",
    "json": "gpudiag.render.report_formats:render_json",
    "junit": "gpudiag.render.ci:render_junit",
    "markdown": "gpudiag.render.ci:render_markdown",
    "prometheus": "gpudiag.render.prometheus:render_prometheus",
    "github": "gpudiag.render.ci:render_github",
}
REPORT_FORMATS = tuple(_PLACES)
_DOCUMENT = "gpudiag.model.codec:dumps"
_PLACES_OF: dict[type, dict[str, str]] = {
    Report: _PLACES,
    CollectiveReport: {"text": "gpudiag.render.collective_text:render_collective", "json": _DOCUMENT},
    JobRun: {"text": "gpudiag.render.job_run_text:render_job_run", "json": _DOCUMENT},
    HangReport: {"text": "gpudiag.render.hang_text:render_hang", "json": _DOCUMENT},
    TrainingReport: {
        "text": "gpudiag.render.training_text:render_training",
        "json": _DOCUMENT,
        "markdown": "gpudiag.render.training_text:render_training_markdown",
    },
}


def render_report(name: str, report: Report) -> str:
    """The report in the format of that name, with a line end. Raises KeyError: there is no such format."""
    return _render(_PLACES[name], report)


def formats_of(report_type: type) -> tuple[str, ...]:
    """The formats for a report of that type; empty for what is no report."""
    return tuple(_PLACES_OF.get(report_type, ()))


def render_any_report(name: str, report: Any) -> str:
    """A report of any kind in that format. Raises KeyError: a report of this kind is not written so."""
    return _render(_PLACES_OF[type(report)][name], report)


def _render(place: str, report: Any) -> str:
    module, _, function = place.partition(":")
    text: str = getattr(import_module(module), function)(report)
    return text
