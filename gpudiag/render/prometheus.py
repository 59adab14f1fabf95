"""A report in Prometheus' text format, for node_exporter's textfile collector.

Every series is a gauge of this moment. A check's outcome is a label on a series of value 1, so that
`gpudiag_check_status{outcome="fail"}` is an alert; `gpudiag_report_timestamp_seconds` shows how old the
file is; an alert on it notices when it is no longer written.
"""

from collections.abc import Iterable

from gpudiag import __version__
from gpudiag.model.finding import WORST_FIRST, CheckResult, Outcome
from gpudiag.model.report import Report
from gpudiag.render.finding_metrics import FINDING, count_findings
from gpudiag.render.report_words import finite_seconds
from gpudiag.render.style import one_line

_MAX_LABEL_CHARACTERS = 200

_Labels = dict[str, str]
_Samples = dict[tuple[tuple[str, str], ...], float]


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
    blocks = (
        _metric(
            "gpudiag_build_info",
            "The version of gpudiag that wrote this, and its host.",
            [(information, 1.0)],
        ),
        _metric(
            "gpudiag_report_verdict",
            "1 for the verdict on this machine: pass, warn, fail or error.",
            [({**host, "verdict": report.verdict.value}, 1.0)],
        ),
        _metric("gpudiag_report_timestamp_seconds", "Time of the look at the machine.", [(host, moment)]),
        _metric("gpudiag_check_status", "1 for the outcome of a check; skip did not apply.", statuses),
        _metric("gpudiag_check_duration_seconds", "How long a check took.", seconds),
        _metric(*FINDING, count_findings(found, report.snapshot)),
    )
    return "".join(blocks)


def _worst_of_each(results: tuple[CheckResult, ...]) -> dict[str, Outcome]:
    """Each check's outcome; the worst one where a name comes twice."""
    order = (*WORST_FIRST, Outcome.SKIP)
    worst: dict[str, Outcome] = {}
    for result in results:
        known = worst.get(result.check, Outcome.SKIP)
        worst[result.check] = min(known, result.outcome, key=order.index)
    return worst


def _metric(name: str, text: str, samples: Iterable[tuple[_Labels, float]]) -> str:
    """HELP, TYPE and the samples; those with equal labels are added up. Empty without samples."""
    series: _Samples = {}
    for labels, value in samples:
        # Label values are cut and cleaned before they are compared: what looks alike is one series.
        key = tuple((label, one_line(word, _MAX_LABEL_CHARACTERS)) for label, word in labels.items())
        series[key] = series.get(key, 0.0) + value
    if not series:
        return ""
    lines = [f"# HELP {name} {text}", f"# TYPE {name} gauge"]
    for key, value in series.items():
        joined = ",".join(f'{label}="{_escape(word)}"' for label, word in key)
        lines.append(f"{name}{{{joined}}} {_number(value)}")
    return "\n".join(lines) + "\n"


def _escape(word: str) -> str:
    """The text with backslash, quote and line end escaped for the text exposition format."""
    return word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
