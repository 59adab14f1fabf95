"""Writes docs/findings.md: every check and code, a copy of the catalogue that a test compares."""

from pathlib import Path

from gpudiag.checks import BUILTIN
from gpudiag.checks.catalogue import finding_kinds
from gpudiag.checks.registry import Check, FindingKind
from gpudiag.model.finding import Outcome

PAGE = Path(__file__).parents[1] / "docs" / "findings.md"

_HEAD = """# Findings

Every code that gpudiag may report: what it does to a verdict, who must act (`owner`), and whether it keeps
jobs off the machine, which is another question (`gpudiag preflight --fail-on machine`,
[decision 17](decisions/0017-owner-and-gate.md)). Written by `python tools/write_findings_page.py` from the
catalogue in `gpudiag/checks`.

## Checks

| check | level | passes when |
| --- | --- | --- |
"""


def page_text() -> str:
    """The whole page."""
    checks = "".join(_check_row(check) for check in BUILTIN)
    return _HEAD + checks + "\n## Codes\n" + "".join(_entry(kind) for kind in finding_kinds())


def _check_row(check: Check) -> str:
    return f"| `{check.name}` | {check.level.name.lower()} | {check.title} |\n"


def _entry(kind: FindingKind) -> str:
    facts = f"{kind.outcome.value}, severity {kind.severity.value}, category {kind.category.value}"
    return (
        f"\n### `{kind.code}`\n\n{kind.meaning}\n\n"
        f"- {facts}, owner {kind.owner.value}; {_gate(kind)}\n- {kind.remedy}\n"
    )


def _gate(kind: FindingKind) -> str:
    """What a gate makes of it."""
    if kind.outcome is Outcome.ERROR:
        return "no result: the gate decides"
    if kind.outcome is not Outcome.FAIL:
        return "jobs may start"
    return f"jobs may start: {kind.spares_jobs}" if kind.spares_jobs else "keeps jobs off"


def main() -> None:
    """Write the page."""
    PAGE.write_text(page_text())


if __name__ == "__main__":
    main()
