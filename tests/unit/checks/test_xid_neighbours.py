"""An Xid and what stands beside it: the Xid that caused it, an error of the link, and a storm of one line."""

from dataclasses import replace
from datetime import timedelta

import pytest

from gpudiag.checks.on_machine import MACHINE_CHECKS
from gpudiag.checks.runner import run_checks
from gpudiag.model.finding import Outcome, Owner
from gpudiag.reference.xid import XidKind, xids
from tests.unit.checks.kernel_events import event_from, evidence_of, judge, snapshot_with, xid
from tests.unit.checks.machines import look_at
from tests.walking import walk

NVLINK = [code for code in range(144, 151) if code in xids()]


def address(gpu):
    return snapshot_with().devices[gpu].id.bus_id[4:]


def found(*events):
    context = look_at(snapshot_with(kernel_log=events))
    checks = [
        one
        for one in MACHINE_CHECKS
        if one.name in ("xid.kernel_log", "host.kernel_log", "host.kernel_words")
    ]
    return [finding for one in run_checks(context, checks) for finding in one.findings]


@walk(sorted(xids()), str)
def test_a_follower_is_judged_as_the_xid_that_it_names(code):
    """open-gpu-kernel-modules issue 1150: all that the log had was `45, ... caused by previous Xid 149`."""
    named = judge(xid(45, gpu=2, rest=f"pid=1, name=python3, Ch 1 caused by previous Xid {code}"))
    plain = judge(xid(code, gpu=2))
    assert [finding.code for finding in named] == [finding.code for finding in plain]
    assert [finding.outcome for finding in named] == [finding.outcome for finding in plain]


@walk(NVLINK, str)
def test_nvlink_errors_of_other_gpus_follow_the_first(code):
    first = xid(45, gpu=3, minutes_ago=31, rest="Ch 1 caused by previous Xid 149")
    others = [xid(45, gpu, minutes_ago=30.5, rest=f"Ch 1 caused by previous Xid {code}") for gpu in (0, 1)]
    (finding,) = judge(first, *others)
    assert (finding.code, finding.subject.nvml_index, finding.owner) == ("xid.hardware", 3, Owner.HARDWARE)
    assert "Xid 149 (named by Xid 45)" in finding.message
    assert "on 2 GPUs" in evidence_of(finding)["on_other_gpus"]


def test_a_line_of_its_own_comes_before_one_that_is_only_named():
    named = xid(45, gpu=1, minutes_ago=30.1, rest="Ch 1 caused by previous Xid 48")
    (finding,) = judge(named, xid(48, gpu=1, minutes_ago=30))
    assert "named by" not in finding.message


# NVIDIA/open-gpu-kernel-modules issue 1229 (completion timeout of an eGPU), linux-pci 2025-05 (DPC),
# NVIDIA/nccl issue 1999 (IOMMU), returnn issue 1500 (AER beside Xid 31).
BESIDE = {
    "AER nonfatal": "nvidia {}: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=Transaction Layer",
    "AER fatal": "pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received: {}",
    "no recovery": "nvidia {}: AER: can't recover (no error_detected callback)",
    "AMD IOMMU": "nvidia {}: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x000f address=0x0 flags=0x0000]",
    "D3cold": "nvidia {}: Unable to change power state from D3cold to D0, device inaccessible",
    "Intel IOMMU": "DMAR: [DMA Read NO_PASID] Request device [{}] fault addr 0xd [fault reason 0x06] PTE Read access",
}
OF_APPLICATIONS = [code for code, entry in xids().items() if entry.kind is XidKind.APPLICATION]


@pytest.mark.parametrize("text", BESIDE.values(), ids=BESIDE)
def test_an_applications_xid_beside_an_error_of_the_link_is_the_links(text):
    for code in OF_APPLICATIONS:
        event = event_from(text.format(address(2)), 30.0)
        for moment in (30.1, 29.9):  # a syslog daemon may write them in another order
            (finding,) = found(event, xid(code, gpu=2, minutes_ago=moment))
            assert finding.code.startswith("kernel."), code
            assert (finding.subject.nvml_index, f"Xid {code}" in finding.message) == (2, True)


@pytest.mark.parametrize(("gpu", "minutes"), [(1, 30), (2, 60)], ids=["another GPU", "another time"])
def test_elsewhere_and_at_another_time_it_is_the_jobs(gpu, minutes):
    event = event_from(BESIDE["no recovery"].format(address(2)), 30.0)
    assert {finding.code for finding in found(event, xid(31, gpu=gpu, minutes_ago=minutes))} == {
        "kernel.pcie_recovery_failed",
        "xid.application",
    }


def test_a_storm_is_one_finding_with_its_count_and_both_times():
    """NVIDIA/NVSentinel issue 1120: 800,000 lines of Xid 95 in one log."""
    first = xid(95, gpu=2, minutes_ago=90, rest="pid=11436, name=python3, Uncontained: FBHUB")
    last = xid(95, gpu=2, minutes_ago=10, rest="pid=11436, name=python3, Uncontained: FBHUB")
    first = replace(first, more=99_998, until=last.at - timedelta(seconds=1))
    (finding,) = judge(first, last)
    assert (finding.outcome, evidence_of(finding)["count"]) == (Outcome.FAIL, 100_000)
    assert "(100000 lines, the last " in finding.message
    assert evidence_of(finding)["last_at"] == last.at.isoformat(timespec="seconds")
