"""The kernel's words for faults: from the texts that people met to findings, and to the same topic of
`explain`.
"""

import pytest

from gpudiag.checks.gpu.gone import known_gpus_of
from gpudiag.checks.host.kernel_words import host_kernel_words
from gpudiag.checks.on_machine import MACHINE_CHECKS
from gpudiag.checks.runner import run_checks
from gpudiag.explain.recipe import explain_text
from gpudiag.model.finding import Owner
from gpudiag.probe.kernel_log.lines import MAX_TEXT_CHARACTERS, markers, parse_kernel_line
from gpudiag.reference.kernel_words import kernel_words
from tests.corpus.explained import texts
from tests.kernel_lines import parse_kernel_lines
from tests.scenarios.kernel_words_cases import LINES, REASONS
from tests.unit.checks.kernel_events import event_from, evidence_of, snapshot_with, xid
from tests.unit.checks.machines import look_at
from tests.unit.model.nouns import TAKEN_AT, make_device, make_snapshot
from tests.walking import walk

REPORTED = [text for text in texts() if text.kind == "kernel"]


def judge(*events):
    return host_kernel_words.judge(look_at(snapshot_with(kernel_log=events))).findings


@walk(REPORTED, lambda text: text.name)
def test_a_reported_line_is_one_finding_and_the_same_topic_of_explain(text):
    (finding,) = judge(event_from(text.text.strip()))
    assert finding.code == text.expected
    assert text.expected in {sighting.explanation.topic for sighting in explain_text(text.text).sightings}


@walk(kernel_words(), lambda words: words.id)
def test_every_pattern_is_searched_for_by_a_part_that_its_lines_hold(words):
    assert all(len(part) >= 4 and part in markers() for part in words.parts)
    line = REASONS[words.id] if words.reason_of else LINES[words.id]
    assert parse_kernel_line(line, TAKEN_AT).fault == words.id
    assert len(line) < MAX_TEXT_CHARACTERS


# Healthy machines print these: a hot-plugged link that came back, boot lines, corrected errors, a floppy
# drive of a guest.
HARMLESS = (
    "pcieport 0015:00:00.0: pciehp: Slot(21): Link Down/Up ignored",
    "pcieport 0000:00:1d.0: AER: device recovery successful",
    "mlx5_core 0000:54:00.0: Rate limit: 127 rates are supported, range: 0Mbps to 195312Mbps",
    "mlx5_core 0000:54:00.0: Port module event: module 0, Cable plugged",
    "AMD-Vi: Interrupt remapping enabled",
    "DMAR: IOMMU enabled",
    "blk_update_request: I/O error, dev fd0, sector 0 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 0",
    "ACPI Error: Aborting method \\_SB.PCI0._OSC due to previous error (AE_NOT_FOUND)",
    "nvme nvme0: Shutdown timeout set to 8 seconds",
    "CPU7: Core temperature/speed normal (total events = 219)",
    "WARNING: CPU: 3 PID: 99 at drivers/net/foo.c:12 foo+0x1/0x2",
    "RIP: 0010:os_delay+0x51/0x3a0 [nvidia]",
)


@walk(HARMLESS, lambda line: line[:40])
def test_what_healthy_machines_print_is_no_fault(line):
    event = parse_kernel_line(line, TAKEN_AT)
    assert event is None or event.fault is None


def test_a_crash_names_the_module_and_is_softwares():
    lines = (
        "BUG: kernel NULL pointer dereference, address: 00000000000000a8",
        "Oops: Oops: 0000 [#1] SMP NOPTI",
        "RIP: 0010:uvm_hmm_unregister_gpu+0x51/0x3a0 [nvidia_uvm]",
    )
    (finding,) = judge(*parse_kernel_lines((TAKEN_AT, line) for line in lines))
    assert "(in nvidia_uvm)" in finding.message
    assert (finding.owner, evidence_of(finding)["count"]) == (Owner.SOFTWARE, 2)


def test_a_link_that_went_down_says_how_many_gpus_are_left():
    (finding,) = judge(event_from(LINES["kernel.pcie_link_down"]))
    assert "40:01.1" in finding.message
    assert "4 are listed now" in finding.message


def test_lines_of_one_card_are_one_finding_with_count_first_and_last_time():
    lines = [text.text.strip() for text in REPORTED if text.expected == "kernel.network_card_fault"]
    events = [event_from(line, 60.0 - place) for place, line in enumerate(lines)]
    (finding,) = judge(*events)
    facts = evidence_of(finding)
    assert (facts["count"], facts["at"]) == (len(lines), events[0].at.isoformat(timespec="seconds"))
    assert facts["last_at"] == events[-1].at.isoformat(timespec="seconds")


UNKNOWN = {
    "a line of a driver": "foo 0000:01:00.0: FATAL: microcode asserted at 0x12",
    "an unknown BUG": "[ 12.1] BUG: sleeping function called from invalid context at mm/slab.h:321",
    "an ERROR of a tool": "2026-11-20 10:00:00 ERROR frobnicator: the widget is gone",
}


@pytest.mark.parametrize("line", UNKNOWN.values(), ids=UNKNOWN)
def test_a_grave_line_that_nobody_knows_is_never_nothing_wrong(line):
    verdict = explain_text(f"starting\n{line}\ndone\n").verdict
    assert "Nothing wrong found" not in verdict.sentence
    if verdict.kind.value == "nothing":
        assert verdict.sentence.startswith("Nothing known found, 1 line not known.")
        assert any(line[-20:] in words for words in verdict.evidence)


@pytest.mark.parametrize(
    "line", ["log_level=ERROR", "epoch 3: 0 ERROR", "0 fatal, 0 error", "panic_on_oops = 1"]
)
def test_a_setting_or_a_count_of_none_is_no_error(line):
    assert explain_text(f"starting\n{line}\nstep 1 loss 2.0\n").verdict.sentence.startswith(
        "Nothing wrong found."
    )


def test_the_link_of_a_gpu_that_was_here_is_told_with_it():
    now = snapshot_with(kernel_log=(event_from(LINES["kernel.pcie_link_down"]),))
    known = known_gpus_of(make_snapshot(*(make_device(place) for place in range(5))))
    checks = [one for one in MACHINE_CHECKS if one.name in ("machine.gpus", "host.kernel_words")]
    found = [
        finding for one in run_checks(look_at(now, known_gpus=known), checks) for finding in one.findings
    ]
    assert [finding.code for finding in found] == ["gpu.gone"]
    assert "a PCI Express link went down" in found[0].message


LOCKED = LINES["driver.gpu_locked"]


def codes_of_checks(snapshot):
    checks = [one for one in MACHINE_CHECKS if one.name in ("xid.kernel_log", "host.kernel_words")]
    return [
        (finding.code, getattr(finding.subject, "nvml_index", None))
        for one in run_checks(look_at(snapshot), checks)
        for finding in one.findings
    ]


def test_a_gpu_that_does_not_move_has_the_number_that_the_driver_gives_it():
    (finding,) = judge(event_from(LOCKED))
    assert "the driver counts it as GPU 6" in finding.message


def test_with_an_xid_near_it_is_one_finding_about_that_gpu():
    events = (event_from(LOCKED, 60.0), xid(119, gpu=2, minutes_ago=59.0))
    assert codes_of_checks(snapshot_with(kernel_log=events)) == [("xid.hardware", 2)]


def test_an_xid_hours_away_is_of_another_fault():
    events = (event_from(LOCKED, 60.0), xid(119, gpu=2, minutes_ago=300.0))
    assert sorted(codes_of_checks(snapshot_with(kernel_log=events)), key=str) == [
        ("driver.gpu_locked", None),
        ("xid.hardware", 2),
    ]


def test_a_restart_of_the_driver_settles_what_is_about_a_gpu_and_nothing_else():
    lines = (
        LOCKED,
        LINES["kernel.gpu_reset_required"],
        LINES["kernel.network_card_fault"],
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.105.08  Release Build",
    )
    found = judge(*parse_kernel_lines((TAKEN_AT, line) for line in lines))
    assert [finding.code for finding in found] == ["kernel.network_card_fault"]


@walk(REASONS.values(), lambda line: line[:40])
def test_a_reason_for_another_finding_is_none_by_itself(line):
    assert not judge(event_from(line))


@pytest.mark.parametrize(
    ("logged", "searched"),
    [("0000:54:00.0", "`dmesg -T | grep 54:00.0`"), ("7870:00:00.0", "grep 7870:00:00.0`")],
)
def test_a_remedy_searches_for_the_address_as_the_kernel_writes_it(logged, searched):
    (finding,) = judge(event_from(f"mlx5_core {logged} ibp84s0: TX timeout detected"))
    assert searched in finding.remedy
