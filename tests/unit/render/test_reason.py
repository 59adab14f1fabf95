import shlex

import pytest
from hypothesis import given

from gpudiag.model.finding import Outcome
from gpudiag.render.reason import MAX_CHARACTERS, render_reason
from tests.unit.render.reports import (
    ALL_SKIPPED,
    CPU_ONLY,
    HEALTHY,
    SICK,
    SIMULATED,
    hostile_reports,
    make_report,
    make_result,
)


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        (
            SICK,
            "gpudiag FAIL gpu.lost (+1 more): GPU 5 (5d:00.0) is off the bus: GPU is lost\n",
        ),
        (HEALTHY, "gpudiag PASS 2 looked\n"),
        (CPU_ONLY, "gpudiag PASS CPU ONLY: 1 looked, 1 skipped\n"),
        (ALL_SKIPPED, "gpudiag ERROR 0 looked, 1 skipped\n"),
    ],
)
def test_the_line_says_what_a_person_must_know(report, expected):
    assert render_reason(report) == expected


def test_a_simulated_fault_says_so():
    assert render_reason(SIMULATED).startswith("gpudiag FAIL SIMULATED h100x8+lost:5: gpu.lost: ")


def test_what_could_not_look_is_named():
    report = make_report(make_result("torch.build", Outcome.ERROR, reason="torch hangs"))
    assert render_reason(report) == "gpudiag ERROR torch.build: torch hangs\n"


@given(report=hostile_reports)
def test_the_line_is_one_line_of_plain_text(report):
    text = render_reason(report)
    line = text.removesuffix("\n")
    assert line.isascii()
    assert line.isprintable()
    assert len(line) <= MAX_CHARACTERS
    assert line.startswith(f"gpudiag {report.verdict.value.upper()}")
    assert shlex.split(line) == line.split()  # no quote, no escape
