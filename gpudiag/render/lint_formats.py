"""What a lint found, for other programs: SARIF 2.1.0 (OASIS), and annotations of GitHub."""

import json
from collections.abc import Iterable
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from gpudiag import __version__
from gpudiag.model.lint import LintFinding, LintReport, Severity
from gpudiag.render.ci import escape, escape_property
from gpudiag.render.style import one_line

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVELS = {Severity.FINDING: "error", Severity.NOTE: "note"}
_ANNOTATIONS = {Severity.FINDING: "error", Severity.NOTE: "notice"}
# Titles and reasons of the rules: (code, severity, title, why).
RuleWords = tuple[str, Severity, str, str]


def render_sarif(report: LintReport, rules: Iterable[RuleWords]) -> str:
    """The report as a log of static analysis, which code hosts read."""
    listed = list(rules)
    places = {code: place for place, (code, *_) in enumerate(listed)}
    run: dict[str, Any] = {
        "tool": {
            "driver": {
                "name": "gpudiag lint",
                "version": __version__,
                "rules": [_rule(*words) for words in listed],
            }
        },
        "columnKind": "unicodeCodePoints",
        "results": [_result(finding, places) for finding in report.findings],
        "invocations": [
            {
                "executionSuccessful": True,
                "toolExecutionNotifications": [
                    {"level": "note", "message": {"text": f"{file.path}: {file.remark}"}}
                    for file in report.files
                    if file.remark
                ],
            }
        ],
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _rule(code: str, severity: Severity, title: str, why: str) -> dict[str, Any]:
    return {
        "id": code,
        "name": "".join(word.capitalize() for word in code.removeprefix("lint.").split("_")),
        "shortDescription": {"text": title},
        "fullDescription": {"text": why},
        "defaultConfiguration": {"level": _LEVELS[severity]},
    }


def _result(finding: LintFinding, places: dict[str, int]) -> dict[str, Any]:
    region: dict[str, Any] = {"startLine": finding.line, "startColumn": finding.column}
    if finding.source:
        region["snippet"] = {"text": finding.source}
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": places[finding.code],
        "level": _LEVELS[finding.severity],
        "message": {"text": _message(finding)},
        "locations": [
            {"physicalLocation": {"artifactLocation": {"uri": _uri(finding.path)}, "region": region}}
        ],
    }
    if finding.edits:
        result["fixes"] = [_fix(finding)]
    return result


def _message(finding: LintFinding) -> str:
    """The message, and what to do."""
    if not finding.fix:
        return f"{finding.message}. {finding.advice}" if finding.advice else finding.message
    place = finding.place
    where = "" if place is None else f" {'moved' if place.moves else 'added'} in front of line {place.line}"
    return f"{finding.message}. Better{where}: {finding.fix}"


def _fix(finding: LintFinding) -> dict[str, Any]:
    replacements = []
    for edit in finding.edits:
        text = f"{edit.text}\n" if edit.before else edit.text
        replacements.append(
            {
                "deletedRegion": {
                    "startLine": edit.line,
                    "startColumn": edit.column + 1,
                    "endLine": edit.line,
                    "endColumn": edit.end_column + 1,
                },
                "insertedContent": {"text": text},
            }
        )
    change = {"artifactLocation": {"uri": _uri(finding.path)}, "replacements": replacements}
    return {"description": {"text": finding.fix or finding.message}, "artifactChanges": [change]}


def _uri(path: str) -> str:
    pure = PurePath(path)
    return pure.as_uri() if pure.is_absolute() else quote(pure.as_posix())


def render_annotations(report: LintReport) -> str:
    """One workflow command for each mistake, which a runner of GitHub shows beside the line."""
    lines = []
    for finding in report.findings:
        text = _message(finding)
        lines.append(
            f"::{_ANNOTATIONS[finding.severity]}"
            f" file={escape_property(one_line(finding.path))},line={finding.line},"
            f"col={finding.column},title={escape_property(finding.code)}::{escape(one_line(text))}"
        )
    for file in report.files:
        if file.remark:
            lines.append(
                f"::notice file={escape_property(one_line(file.path))}::{escape(one_line(file.remark))}"
            )
    return "".join(f"{line}\n" for line in lines)
