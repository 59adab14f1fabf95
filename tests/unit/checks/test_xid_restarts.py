"""What proves that a GPU or a switch was restarted after its fault, and what is one life of a GPU."""

from dataclasses import replace
from datetime import timedelta

from gpudiag.checks.gpu.xid import SETTLED_WINDOW, UNASKED_WINDOW
from gpudiag.checks.links.sxid import judge_sxids
from gpudiag.model.device import NvLink
from gpudiag.model.finding import Outcome
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.reference.xid import XidKind, xids
from tests.unit.checks.kernel_events import (
    FAILING,
    LOST,
    MINUTES_A_DAY,
    codes,
    evidence_of,
    judge,
    recovery,
    snapshot_with,
    sxid,
    xid,
)
from tests.unit.model.nouns import make_device, make_snapshot
from tests.walking import walk

LOADED = "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023"


def restarted(*events, by=LOADED, minutes_ago=1.0):
    """Those events, after which the driver was loaded again."""
    at = snapshot_with().taken_at - timedelta(minutes=minutes_ago)
    return tuple(replace(event, restarted_by=by, restarted_at=at) for event in events)


@walk([(code, silent) for code in FAILING for silent in (None, "none")])
def test_a_fault_is_settled_when_its_gpu_was_restarted_and_works(case):
    code, silent = case
    snapshot = snapshot_with(silent)
    expected = "xid.hardware" if xids()[code].lasting else "xid.settled"
    (finding,) = judge(*restarted(xid(code, gpu=2)), snapshot=snapshot)
    assert (finding.code, finding.subject.nvml_index) == (expected, 2)
    if not xids()[code].lasting:
        assert evidence_of(finding)["restarted_by"] == LOADED


@walk(
    [
        code
        for code, entry in xids().items()
        if entry.outcome is Outcome.WARN and entry.kind is XidKind.HARDWARE
    ]
)
def test_wear_asks_for_nothing_when_its_gpu_was_restarted_and_works(code):
    (finding,) = judge(*restarted(xid(code)))
    assert finding.code == ("xid.wear" if xids()[code].lasting else "xid.settled")
    assert [one for one, _ in codes(xid(code))] == ["xid.wear"]
    assert not judge(*restarted(xid(code, minutes_ago=8 * MINUTES_A_DAY))) or xids()[code].lasting


def test_a_row_that_was_replaced_is_not_asked_to_be_replaced_again():
    def of(pending):
        return make_snapshot(*(make_device(index, row_remap_pending=pending) for index in range(4)))

    assert codes(xid(63, rest=REMAPPED), snapshot=of(False)) == [("xid.settled", 0)]
    assert codes(xid(63, rest=REMAPPED), snapshot=of(True)) == [("xid.wear", 0)]
    assert codes(xid(63, rest=REMAPPED), xid(94), snapshot=of(False)) == [("xid.settled", 0)]
    without = {"row_remap_pending": Missing(MissingReason.NOT_SUPPORTED)}
    retired = "Dynamic Page Retirement: New page retired, reboot to activate (0x0000000000000c1d)."
    for pending, code in ((False, "xid.settled"), (True, "xid.wear")):
        volta = make_snapshot(make_device(0, page_retirement_pending=pending, **without))
        assert codes(xid(63, rest=retired), snapshot=volta) == [(code, 0)]


def test_a_request_of_a_driver_that_was_loaded_again_since_is_over():
    assert codes(*restarted(xid(95), recovery(2))) == [("xid.settled", 0)]
    assert codes(*restarted(xid(95)), recovery(2)) == [("xid.hardware", 0)]


@walk(["a GPU that is lost", "a request", "the fault again", "a worse one after it", "a flood that went on"])
def test_a_restart_settles_nothing_for(case):
    lost = replace(make_device(0), responding=LOST, recovery_action=LOST)
    on_lost, before = make_snapshot(lost), restarted(xid(119), minutes_ago=59)
    events, snapshot = {
        "a GPU that is lost": (restarted(xid(79)), on_lost),
        "a request": (restarted(xid(79)), snapshot_with("gpu_reset")),
        "the fault again": ((*before, xid(119, minutes_ago=58)), None),
        "a worse one after it": ((*before, xid(79, minutes_ago=58)), None),
        "a flood that went on": (
            (replace(before[0], more=9, until=before[0].restarted_at + timedelta(seconds=1)),),
            None,
        ),
    }[case]
    (finding,) = judge(*events, snapshot=snapshot)
    assert finding.outcome is Outcome.FAIL


REMAPPED = "Row Remapper: New row marked for remapping, reset gpu to activate."


@walk(
    [
        (False, 60, 60, "xid.settled"),
        (True, 60, 60, "xid.hardware"),
        (Missing(MissingReason.NOT_SUPPORTED), 60, 60, "xid.hardware"),
        # The fault came two minutes after the row's Xid: a reset may lie between.
        (
            False,
            60,
            58,
            "xid.hardware",
        ),
        (False, 58, 60, "xid.settled"),
    ]
)
def test_a_row_that_waited_for_a_reset_and_waits_no_longer_proves_one(case):
    pending, row, fault, expected = case
    snapshot = make_snapshot(*(make_device(index, row_remap_pending=pending) for index in range(4)))
    events = (xid(63, minutes_ago=row, rest=REMAPPED), xid(95, minutes_ago=fault))
    assert [code for code, _ in codes(*sorted(events, key=lambda e: e.at), snapshot=snapshot)] == [expected]


def test_a_fault_that_may_be_past_says_how_to_tell_that_the_gpu_was_reset():
    (finding,) = judge(xid(119, gpu=1))
    address = make_device(1).id.bus_id.removeprefix("00000000:")
    assert f"`echo 'gpudiag: {address} was reset' | sudo tee /dev/kmsg`" in finding.remedy
    (linked,), (switch,) = judge(xid(74)), judge_sxids(snapshot_with(), [sxid(23001)])
    for finding in (linked, switch):  # reset together, and the switches with them
        assert "`echo 'gpudiag: all GPUs were reset' | sudo tee /dev/kmsg`" in finding.remedy
    for events, snapshot in (
        ((xid(64),), None),  # damage that lasts
        ((xid(119),), snapshot_with("gpu_reset")),  # the driver itself knows when it was reset
        ((xid(79),), make_snapshot(replace(make_device(0), responding=LOST, recovery_action=LOST))),
    ):
        (other,) = judge(*events, snapshot=snapshot)
        assert "/dev/kmsg" not in other.remedy


def test_a_switch_error_is_settled_when_the_fabric_works_since():
    def told(*events, snapshot=None):
        return [finding.code for finding in judge_sxids(snapshot or snapshot_with(), events)]

    inside, week = UNASKED_WINDOW / timedelta(minutes=1), SETTLED_WINDOW / timedelta(minutes=1)
    assert told(sxid(23001, minutes_ago=inside - 1)) == ["sxid.fatal"]
    assert told(sxid(23001, minutes_ago=inside + 1)) == ["sxid.settled"]
    assert told(*restarted(sxid(23001))) == ["sxid.settled"]
    assert told(*restarted(sxid(20034), xid(74))) == ["sxid.settled"]
    assert told(*restarted(sxid(23001)), sxid(23001, minutes_ago=10)) == ["sxid.fatal"]
    assert told(sxid(23001, minutes_ago=week + 1)) == []
    assert told(sxid(20034, minutes_ago=week - 1)) == ["sxid.error"]
    assert told(sxid(20034, minutes_ago=week + 1)) == []


UP = NvLink(0, True, "00000000:05:00.0", 0, 0, 0, 0)


def test_an_old_switch_error_counts_while_a_gpu_or_a_link_does_not_work():
    two_weeks = 14 * MINUTES_A_DAY
    lost = replace(make_device(0), responding=LOST, recovery_action=LOST)
    down = make_device(0, nvlinks=(UP, replace(UP, link=1, active=False)))
    for snapshot in (make_snapshot(lost), make_snapshot(down), snapshot_with("gpu_reset"), make_snapshot()):
        event = sxid(23001, minutes_ago=two_weeks)
        assert [finding.code for finding in judge_sxids(snapshot, restarted(event))] == ["sxid.fatal"]
        assert [finding.code for finding in judge_sxids(snapshot, [event])] == ["sxid.fatal"]


def test_a_fault_that_goes_on_until_the_reset_that_the_driver_asked_for_is_no_repeat():
    going_on = (
        xid(119, minutes_ago=60),
        recovery(1, minutes_ago=60),
        xid(119, minutes_ago=50),
        xid(119, minutes_ago=40),
    )
    assert codes(*going_on, snapshot=snapshot_with("gpu_reset")) == [("xid.hardware", 0)]
    assert codes(*going_on, snapshot=snapshot_with("none")) == [("xid.settled", 0)]
    assert codes(*restarted(*going_on)) == [("xid.settled", 0)]
    # It was reset after the first: the driver asked again.
    again = (*going_on[:3], recovery(1, minutes_ago=50))
    assert codes(*again, snapshot=snapshot_with("none")) == [("xid.repeated", 0)]
    # Another life by the log's own word, or another boot.
    for first in (
        restarted(*going_on[:2], minutes_ago=55),
        tuple(replace(one, boot_id="b") for one in going_on[:2]),
    ):
        assert codes(*first, going_on[2], snapshot=snapshot_with("none")) == [("xid.repeated", 0)]


def test_a_fault_that_one_process_meets_again_and_again_is_no_repeat():
    def met_by(*pids):
        return [
            xid(119, minutes_ago=60 - 5 * place, rest=f"pid={pid}, name=hostengine")
            for place, pid in enumerate(pids)
        ]

    assert codes(*met_by(7, 7, 7)) == [("xid.hardware", 0)]
    assert codes(*restarted(*met_by(7, 7, 7))) == [("xid.settled", 0)]
    assert codes(*met_by(7, 7, 8)) == [("xid.repeated", 0)]
    assert "came back once" in judge(*met_by(7, 7, 8))[0].remedy
    assert codes(*restarted(*met_by(7), minutes_ago=58), *met_by(7, 7)[1:]) == [("xid.repeated", 0)]
