"""No recorded machine warns, unless the decision that lists such warnings keeps that one and says why.

That no base machine does is held by test_catalogue.py:test_a_healthy_machine_raises_no_alarm.
"""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from gpudiag.checks import BUILTIN
from gpudiag.checks.catalogue import finding_kinds
from gpudiag.checks.runner import run_checks
from gpudiag.model.context import Context
from gpudiag.model.documents import loads
from gpudiag.model.finding import CheckResult, Outcome
from tests.recorded_machines import MACHINES, read_recorded

NOTE = Path(__file__).parents[2] / "docs/decisions/0037-a-warning-is-for-someone-who-acts.md"
DECIDED = dict(re.findall(r"^\| `([a-z_.]+)` \| [^|]+ \| (note|kept) \|", NOTE.read_text(), re.MULTILINE))
KEPT = {code for code, decision in DECIDED.items() if decision == "kept"}


def warnings(results: tuple[CheckResult, ...]) -> set[str]:
    return {
        finding.code
        for result in results
        for finding in result.findings
        if finding.outcome is not Outcome.PASS
    }


def test_the_decision_names_codes_that_there_are():
    assert DECIDED
    assert DECIDED.keys() <= {kind.code for kind in finding_kinds()}


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("file", ["preflight-standard.json", "bandwidth.json"])
def test_a_recorded_machine_warns_of_nothing(name: str, file: str):
    report = loads(read_recorded(f"{name}/{file}"))
    earlier = replace(report.snapshot, taken_at=report.snapshot.taken_at.replace(year=2025))
    for context in (
        Context(report.snapshot, report.measures),
        Context(report.snapshot, report.measures, earlier=earlier),
    ):
        assert warnings(run_checks(context, BUILTIN)) <= KEPT


def test_what_became_a_note_is_said_in_the_document():
    report = loads(read_recorded("h200/preflight-standard.json"))
    assert "host.memory_limit_low" in warnings(report.results), "as gpudiag 0.1.0 judged it"
    now = next(
        result
        for result in run_checks(Context(report.snapshot, report.measures), BUILTIN)
        if result.check == "host.cgroup"
    )
    assert (now.outcome, now.findings) == (Outcome.PASS, ())
    assert "128 GiB of host memory, less than the 140 GiB of a GPU" in (now.reason or "")
