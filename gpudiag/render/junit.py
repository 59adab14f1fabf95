"""A report as JUnit XML, as GitHub, GitLab and Jenkins read it: every check a test case.

The structure is that of Jenkins' junit-10.xsd: a test case has at most one failure, error or skipped
element, times have three decimals. FAIL is a failure, ERROR an error, SKIP skipped with its reason; a
WARN passes, and its system-out has what it found.
"""

from collections.abc import Iterable
from datetime import UTC
from xml.etree import ElementTree

from gpudiag.model.finding import CheckResult, Finding, Outcome
from gpudiag.model.reading import Missing
from gpudiag.model.report import Report
from gpudiag.render.report_words import (
    describe_fact,
    describe_reason,
    describe_remedy,
    describe_where_and_what,
    finite_seconds,
)
from gpudiag.render.style import one_line

_SUITE = "gpudiag preflight"
_ELEMENTS = {Outcome.FAIL: "failure", Outcome.ERROR: "error", Outcome.SKIP: "skipped"}
_COUNTS = {"failures": Outcome.FAIL, "errors": Outcome.ERROR, "skipped": Outcome.SKIP}


def render_junit(report: Report) -> str:
    """The whole document, with its XML declaration."""
    results = _with_verdict(report)
    seconds = sum(finite_seconds(result.seconds) for result in results)
    counts = {name: sum(result.outcome is outcome for result in results) for name, outcome in _COUNTS.items()}
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
    """The results, with a case for the verdict itself where no check's case stands for it.

    JUnit's readers see only cases; a report of nothing, or of skipped checks only, must not be green.
    """
    shown = {result.outcome for result in report.results}
    if report.verdict in shown or (report.verdict is Outcome.PASS and report.results):
        return report.results
    reason = f"the verdict is {report.verdict.value}: {len(report.results)} checks, none of them says so"
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


def _add_case(suite: ElementTree.Element, result: CheckResult) -> None:
    name = one_line(result.check) or "unnamed"
    group = name.partition(".")[0]
    case = ElementTree.SubElement(
        suite,
        "testcase",
        {"classname": f"gpudiag.{group}", "name": name, "time": _time(finite_seconds(result.seconds))},
    )
    details = "\n".join(_describe(result.findings))
    element = _ELEMENTS.get(result.outcome)
    if element is not None:
        attributes = {"message": _headline(result)}
        if result.outcome is not Outcome.SKIP:
            attributes["type"] = one_line(result.findings[0].code) if result.findings else "error"
        ElementTree.SubElement(case, element, attributes).text = details or None
    elif details or result.outcome is Outcome.WARN:
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
