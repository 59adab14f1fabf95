"""Xids of earlier boots, which the kernel log forgets and the history keeps."""

from dataclasses import replace

import pytest

from gpudiag.checks.gpu.xid import xid_kernel_log
from gpudiag.checks.runner import run_checks
from gpudiag.model.context import Context
from gpudiag.model.history import History
from gpudiag.model.reading import Missing, MissingReason
from tests.unit.checks.kernel_events import xid
from tests.unit.model.nouns import make_device, make_snapshot

NOW = xid(48)
SNAPSHOT = make_snapshot(devices=(make_device(0),), kernel_log=(NOW,))


def codes(history, snapshot=SNAPSHOT):
    (result,) = run_checks(Context(snapshot, history=history), (xid_kernel_log,))
    return {finding.code for finding in result.findings}


def test_a_fault_that_an_earlier_boot_had_too_is_a_repeat():
    before = xid(48, minutes_ago=3 * 24 * 60)
    assert codes(History("a1", "store", kernel_events=(before,))) == {"xid.repeated"}


@pytest.mark.parametrize(
    "history",
    [
        History("a1", "store"),
        History("a1", "store", kernel_events=(NOW,)),
        History("a1", "store", kernel_events=(xid(48, minutes_ago=60 - 0.01),)),  # the same, as read before
        Missing(MissingReason.SOURCE_ABSENT, "not read in time"),
    ],
    ids=["empty", "same", "nearly same", "not read"],
)
def test_the_same_event_stored_by_an_earlier_run_is_none(history):
    assert codes(history) == {"xid.hardware"}


def test_another_fault_is_no_repeat():
    before = xid(79, minutes_ago=3 * 24 * 60)
    assert codes(History("a1", "store", kernel_events=(before,))) == {"xid.hardware"}


def test_a_clock_that_was_set_makes_no_repeat_of_an_event_of_this_boot():
    now = replace(NOW, boot_id="b1", boot_seconds=100.0)
    read_before = replace(xid(48, minutes_ago=24 * 60), boot_id="b1", boot_seconds=100.4)
    snapshot = replace(SNAPSHOT, kernel_log=(now,))
    assert codes(History("a1", "store", kernel_events=(read_before,)), snapshot) == {"xid.hardware"}


def test_the_same_moment_after_another_boot_is_a_repeat():
    now = replace(NOW, boot_id="b2", boot_seconds=100.0)
    before = replace(xid(48, minutes_ago=24 * 60), boot_id="b1", boot_seconds=100.0)
    snapshot = replace(SNAPSHOT, kernel_log=(now,))
    assert codes(History("a1", "store", kernel_events=(before,)), snapshot) == {"xid.repeated"}


@pytest.mark.parametrize(
    "before",
    [
        replace(xid(48, minutes_ago=3 * 24 * 60), gpu_uuid="GPU-of-another-board"),
        xid(48, minutes_ago=40 * 24 * 60),
    ],
    ids=["another board in the same place", "long ago"],
)
def test_what_another_board_did_or_was_long_ago_is_no_repeat(before):
    assert codes(History("a1", "store", kernel_events=(before,))) == {"xid.hardware"}
