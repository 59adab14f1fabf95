from dataclasses import replace

import pytest

from gpudiag.checks.host.kernel_faults import host_kernel_log, judge_kernel_log
from gpudiag.checks.runner import run_checks
from gpudiag.model.context import Context
from gpudiag.model.device import PcieErrorCounts
from gpudiag.model.finding import Outcome
from gpudiag.model.reading import Missing, MissingReason
from tests.unit.checks.kernel_events import event_from, xid
from tests.unit.model.nouns import make_device, make_snapshot

KILLED = "Out of memory: Killed process 42 (python3) total-vm:1kB"
SNAPSHOT = make_snapshot(make_device(0))


def codes(*events):
    return [finding.code for finding in judge_kernel_log(SNAPSHOT, events)]


def test_many_lines_of_one_kind_are_one_finding():
    (finding,) = judge_kernel_log(SNAPSHOT, [event_from(KILLED, minutes_ago=m) for m in (30, 20, 10)])
    assert {item.name: item.value for item in finding.evidence}["count"] == 3


@pytest.mark.parametrize(
    "line",
    [
        "pcieport 0000:00:03.0: PCIe Bus Error: severity=Corrected, type=Physical Layer",
        "EDAC MC0: 1 CE memory read error on CPU_SrcID#0",
    ],
)
def test_what_counters_tell_is_not_told_twice(line):
    assert codes(event_from(line)) == []


def test_an_error_of_a_gpus_link_is_told_where_its_counters_do_not():
    line = "nvidia 0000:19:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction"
    (finding,) = judge_kernel_log(SNAPSHOT, [event_from(line)])
    assert (finding.code, finding.subject.bus_id) == ("kernel.pcie_error", "00000000:19:00.0")
    counts = PcieErrorCounts(0, 0, 1, 0, 0, 0, 0)
    counted = replace(SNAPSHOT, devices=tuple(replace(one, pcie_errors=counts) for one in SNAPSHOT.devices))
    assert judge_kernel_log(counted, [event_from(line)]) == ()


def test_xids_are_judged_elsewhere():
    assert codes(xid(79)) == []


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ((), Outcome.PASS),
        ((event_from(KILLED),), Outcome.WARN),
        (Missing(MissingReason.NO_PERMISSION), Outcome.SKIP),
        (Missing(MissingReason.TIMED_OUT), Outcome.ERROR),
    ],
)
def test_the_outcome(log, expected):
    (result,) = run_checks(Context(make_snapshot(make_device(0), kernel_log=log)), (host_kernel_log,))
    assert result.outcome is expected
