import shlex

import pytest
from hypothesis import given

from gpudiag.model.evidence import HostSubject
from gpudiag.model.finding import Outcome, Owner, worst
from gpudiag.model.plan import PreflightPlan
from gpudiag.render.reason import MAX_CHARACTERS, render_reason
from tests.unit.render.reports import (
    ALL_SKIPPED,
    CPU_ONLY,
    HEALTHY,
    SICK,
    SIMULATED,
    hostile_reports,
    make_finding,
    make_report,
    make_result,
)


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        (
            SICK,
            "gpudiag FAIL gpu.lost (+1 more): GPU 5 (5d:00.0) is off the bus: GPU is lost. "
            "Do: Drain the machine and power-cycle it.\n",
        ),
        (HEALTHY, "gpudiag PASS 2 judged\n"),
        (CPU_ONLY, "gpudiag PASS CPU ONLY: 1 judged, 1 skipped\n"),
        (ALL_SKIPPED, "gpudiag ERROR 0 judged, 1 skipped\n"),
    ],
)
def test_the_line_says_what_a_person_must_know(report, expected):
    assert render_reason(report) == expected


def test_a_simulated_fault_says_so():
    assert render_reason(SIMULATED).startswith("gpudiag FAIL SIMULATED h100x8+lost:5: gpu.lost: ")


def test_what_could_not_look_is_named():
    report = make_report(make_result("torch.build", Outcome.ERROR, reason="torch hangs"))
    assert render_reason(report) == "gpudiag ERROR torch.build: torch hangs\n"


LONG = "GPU 5 (5d:00.0): NVLink " + ", ".join(map(str, range(40))) + " are down, 0 are up; peers have them up"
ADVICE = (
    "Reset the GPU with `nvidia-smi -r -i 5`; if it comes back so, "
    + "look at its links, " * 12
    + "replace it."
)


def test_what_to_do_is_told_before_details():
    report = make_report(
        make_result("nvlink.state", Outcome.FAIL, make_finding(message=LONG, remedy=ADVICE)),
    )
    line = render_reason(report).removesuffix("\n")
    assert len(line) < 200
    assert line.startswith("gpudiag FAIL gpu.lost: GPU 5 (5d:00.0): NVLink 0, 1")
    assert line.endswith(".. Do: Reset the GPU with nvidia-smi -r -i 5")


def test_the_part_is_named_also_where_the_sentence_is_cut_before_it_names_it():
    message = "an endless story of what the driver said " * 5 + "about GPU 5 (5d:00.0)"
    report = make_report(make_result("gpu.lost", Outcome.FAIL, make_finding(message=message, remedy=ADVICE)))
    assert ": GPU 5 (5d:00.0): an endless story" in render_reason(report)


OWN_SETTING = make_finding(
    "environment.visible_devices_invalid", owner=Owner.JOB, subject=HostSubject("a1"), blocks_jobs=False
)
MACHINE = PreflightPlan(fail_on="machine")


def test_the_reason_is_what_fails_the_gate_and_not_the_first_fault():
    own, lost = (
        make_result("environment.nccl", Outcome.FAIL, OWN_SETTING),
        make_result("gpu.lost", Outcome.FAIL, make_finding()),
    )
    assert render_reason(make_report(own, lost), MACHINE).startswith("gpudiag FAIL gpu.lost: GPU 5")


def test_what_could_not_look_is_the_reason_where_no_fault_fails_the_gate():
    own = make_result("environment.nccl", Outcome.FAIL, OWN_SETTING)
    unclear = make_result("torch.build", Outcome.ERROR, reason="torch hangs")
    assert render_reason(make_report(own, unclear), MACHINE) == "gpudiag ERROR torch.build: torch hangs\n"
    assert render_reason(make_report(own), MACHINE).startswith("gpudiag FAIL environment.visible_devices")


@given(report=hostile_reports)
def test_the_line_is_one_line_of_plain_text(report):
    text = render_reason(report)
    line = text.removesuffix("\n")
    assert line.isascii()
    assert line.isprintable()
    assert len(line) <= MAX_CHARACTERS < 200
    told = Outcome(line.split()[1].lower())
    assert told is worst((told, report.verdict))  # never better than the verdict
    assert shlex.split(line) == line.split()  # no quote, no escape
