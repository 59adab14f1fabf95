"""The formats of a report by name, for `--format` and `--report`; each is imported when it is asked for."""

from importlib import import_module

from gpudiag.model.report import Report

_PLACES = {
    "text": "gpudiag.render.report_text:render_report_text",
    "json": "gpudiag.render.json:render_json",
    "junit": "gpudiag.render.junit:render_junit",
    "markdown": "gpudiag.render.markdown:render_markdown",
    "prometheus": "gpudiag.render.prometheus:render_prometheus",
    "github": "gpudiag.render.github:render_github",
}
REPORT_FORMATS = tuple(_PLACES)


def render_report(name: str, report: Report) -> str:
    """The report in the format of that name, ending with a line end.

    Raises:
        KeyError: there is no such format.
    """
    module, _, function = _PLACES[name].partition(":")
    text: str = getattr(import_module(module), function)(report)
    return text
