import pytest
from hypothesis import given

from gpudiag.model.evidence import DeviceSubject
from gpudiag.model.finding import CheckResult, Outcome, Owner
from gpudiag.model.reading import MissingReason
from gpudiag.render.report_text import MAX_FINDINGS, render_report_text
from gpudiag.render.style import Style, columns
from tests.unit.model.nouns import make_device, make_snapshot
from tests.unit.render.reports import (
    ALL_SKIPPED,
    CPU_ONLY,
    EMPTY,
    HEALTHY,
    REPORTS,
    SICK,
    SIMULATED,
    hostile_reports,
    make_finding,
    make_report,
    make_result,
)


def lines(report, **keywords):
    return render_report_text(report, **keywords).splitlines()


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
def test_the_verdict_comes_first_and_what_to_type_last(report):
    text = lines(report)
    assert text[0].startswith(report.verdict.value.upper())
    assert text[-1].startswith("Next: gpudiag ")
    assert all(len(line) <= columns() for line in text)


def test_the_verdict_names_who_must_act():
    assert lines(SICK)[0].startswith("FAIL a1: hardware must act, 4 findings in 4 of 7 checks, 1")


def test_a_sick_gpu_is_one_paragraph_with_evidence_and_remedy():
    text = lines(SICK)
    start = next(number for number, line in enumerate(text) if line.startswith("GPU 5 (5d:00.0) (GPU-5"))
    paragraph = text[start : text.index("", start)]
    assert [
        line.split(":")[0].strip() for line in paragraph if line.startswith("  ") and line[2] in "FW"
    ] == [
        "FAIL gpu.lost",
        "FAIL xid.hardware",
        "WARN xid.application",
    ]
    assert sum(line.startswith("    Do: ") for line in paragraph) == 1  # what is alike is told once
    assert "    - responding GPU is lost (NVML)" in paragraph


def test_what_was_not_looked_at_is_said_once_per_reason():
    text = "\n".join(lines(SICK, style=Style(verbose=True)))
    assert "Coverage: 4 judged, 2 skipped, 1 without a result" in text
    assert "2 skipped: this GPU has no ECC (ecc.mode, fabric.state)" in text
    assert "1 without a result: torch did not answer by the deadline (torch.build)" in text


def test_skipped_checks_are_one_line_and_what_could_not_look_comes_after_the_findings():
    text = lines(SICK)
    assert text[-3:-1] == [
        "1 without a result: torch did not answer by the deadline (torch.build)",
        "2 checks were skipped: --verbose shows why.",
    ]
    assert not any("no ECC" in line for line in text)


def test_under_a_fault_what_only_follows_from_it_is_counted():
    words, absent = "NVML does not work: no driver", MissingReason.SOURCE_ABSENT
    blind = [make_result(f"gpu.{n}", Outcome.ERROR, reason=words, missing_reason=absent) for n in range(9)]
    report = make_report(make_result("source.nvml", Outcome.FAIL, make_finding("nvml.absent")), *blind)
    assert "9 checks gave no result because of that." in lines(report)
    assert not any("NVML does not work" in line for line in lines(report))


def test_a_skip_that_a_permission_would_mend_is_told():
    forbidden = CheckResult(
        "xid.log",
        Outcome.SKIP,
        (),
        "the kernel log: no permission to read it",
        0.0,
        MissingReason.NO_PERMISSION,
    )
    text = lines(make_report(make_result("gpu.lost"), forbidden))
    assert text[0].startswith("PASS")
    assert "1 skipped: the kernel log: no permission to read it (xid.log)" in text


@pytest.mark.parametrize(
    ("report", "start"),
    [
        (HEALTHY, "PASS a1: 0 findings in 2 checks"),
        (CPU_ONLY, "PASS CPU ONLY a1: 0 findings in 1 of 2 checks"),
        (SIMULATED, "FAIL SIMULATED h100x8+lost:5 a1: hardware must act"),
        (EMPTY, "ERROR a1: 0 findings in 0 checks"),
        (ALL_SKIPPED, "ERROR a1: 0 findings in 0 of 1 check"),
    ],
)
def test_the_first_line(report, start):
    assert lines(report)[0].startswith(start)


def test_the_cause_is_what_the_next_command_explains():
    assert lines(SICK)[-1] == "Next: gpudiag explain gpu.lost | gpudiag list --wide"


def test_many_findings_are_cut_and_counted():
    many = make_report(make_result("x", Outcome.FAIL, *[make_finding(f"code.{n}") for n in range(30)]))
    assert f"and {30 - MAX_FINDINGS} more findings: --verbose has all" in lines(many)
    assert (
        sum("WARN code." in line or "FAIL code." in line for line in lines(many, style=Style(verbose=True)))
        == 30
    )


def test_colour_is_only_where_it_is_wanted():
    assert "\x1b" not in render_report_text(SICK)
    assert lines(SICK, style=Style(colour=True))[0].startswith("\x1b[31mFAIL\x1b[0m a1")


@given(report=hostile_reports)
def test_nothing_breaks_the_lines(report):
    text = render_report_text(report)
    assert all(character.isprintable() or character == "\n" for character in text)
    assert text.startswith(report.verdict.value.upper())


def test_a_pass_by_readings_alone_says_what_was_not_tested():
    tested = make_report(make_result("gpu.lost"), make_result("collective.all_reduce"))
    assert "Not tested" not in render_report_text(tested)
    why = "the GPUs cannot compute"
    skipped = make_report(
        make_result("gpu.lost"), make_result("collective.all_reduce", Outcome.SKIP, reason=why)
    )
    assert f"Not tested: speed, data, network ({why})" in " ".join(render_report_text(skipped).split())
    assert "(level instant: readings only)" in render_report_text(make_report(make_result("gpu.lost")))
    assert "Not tested" not in render_report_text(SICK)


def test_a_hardware_fault_names_the_board_for_its_return():
    device = make_device(5, serial="1652283706683")
    subject = DeviceSubject(device.id.uuid, device.id.bus_id, 5, "a1")
    for owner, named in ((Owner.HARDWARE, True), (Owner.JOB, False)):
        finding = make_finding(subject=subject, owner=owner)
        report = make_report(make_result("gpu.lost", Outcome.FAIL, finding), snapshot=make_snapshot(device))
        assert ("serial 1652283706683" in render_report_text(report)) is named
        assert (str(device.id.uuid) in render_report_text(report)) is named


@pytest.mark.parametrize(("has_torch", "command"), [(True, "gpudiag nccl-test"), (False, "gpudiag doctor")])
def test_what_needs_torch_is_not_next_without_it(monkeypatch, has_torch, command):
    monkeypatch.setattr("gpudiag.render.report_text.has_module", lambda name: has_torch)
    assert render_report_text(HEALTHY).splitlines()[-1].startswith(f"Next: {command} ")
