"""A report in Prometheus' text format, for node_exporter's textfile collector: gauges of this moment.

`gpudiag_check_status{outcome="fail"}` is an alert, and so is an old `gpudiag_report_timestamp_seconds`.
"""

from collections.abc import Iterable, Iterator

from gpudiag import __version__
from gpudiag.model.finding import WORST_FIRST, CheckResult, Outcome
from gpudiag.model.report import Report
from gpudiag.render.exposition import MAX_LABEL_CHARACTERS, Labels, Page
from gpudiag.render.finding_metrics import FINDING, count_findings
from gpudiag.render.report_words import finite_seconds
from gpudiag.render.style import one_line


def render_prometheus(report: Report) -> str:
    """Every metric with its HELP and TYPE, each series once."""
    host = {"host": report.snapshot.host}
    information = {"version": __version__, **host}
    if report.snapshot.simulated:
        information["simulated"] = report.snapshot.simulated
    checks = _worst_of_each(report.results)
    statuses = [({**host, "check": name, "outcome": outcome.value}, 1.0) for name, outcome in checks.items()]
    seconds = [({**host, "check": result.check}, finite_seconds(result.seconds)) for result in report.results]
    found = (finding for result in report.results for finding in result.findings)
    moment = report.snapshot.taken_at.timestamp()
    page = Page()
    page.add(
        "gpudiag_build_info",
        "gauge",
        "The version of gpudiag that wrote this, and its host.",
        [(information, 1.0)],
    )
    page.add(
        "gpudiag_report_verdict",
        "gauge",
        "1 for the verdict on this machine: pass, warn, fail or error.",
        [({**host, "verdict": report.verdict.value}, 1.0)],
    )
    page.add(
        "gpudiag_report_timestamp_seconds", "gauge", "Time of the look at the machine.", [(host, moment)]
    )
    page.add(
        "gpudiag_check_status",
        "gauge",
        "1 for the outcome of a check; skip did not apply.",
        _summed(statuses),
    )
    page.add("gpudiag_check_duration_seconds", "gauge", "How long a check took.", _summed(seconds))
    name, text = FINDING
    page.add(name, "gauge", text, _summed(count_findings(found, report.snapshot)))
    return page.text()


def _worst_of_each(results: tuple[CheckResult, ...]) -> dict[str, Outcome]:
    """Each check's outcome; the worst one where a name comes twice."""
    order = (*WORST_FIRST, Outcome.SKIP)
    worst: dict[str, Outcome] = {}
    for result in results:
        known = worst.get(result.check, Outcome.SKIP)
        worst[result.check] = min(known, result.outcome, key=order.index)
    return worst


def _summed(samples: Iterable[tuple[Labels, float]]) -> Iterator[tuple[Labels, float]]:
    """Samples with equal labels added up; labels are compared as they are printed."""
    series: dict[tuple[tuple[str, str], ...], float] = {}
    for labels, value in samples:
        key = tuple((label, one_line(word, MAX_LABEL_CHARACTERS)) for label, word in labels.items())
        series[key] = series.get(key, 0.0) + value
    return ((dict(key), value) for key, value in series.items())
