from collections import Counter
from datetime import date

import pytest

from gpudiag.model.finding import Outcome
from gpudiag.reference.tables import read_table
from gpudiag.reference.xid import (
    SXidClass,
    XidKind,
    action_text,
    escalated,
    sxid_source,
    sxids,
    xid_source,
    xids,
)
from tests.walking import walk

FAIL, WARN, PASS = Outcome.FAIL, Outcome.WARN, Outcome.PASS


@pytest.mark.parametrize("name", ["xid", "sxid"])
def test_no_code_stands_twice(name):
    codes = Counter(code for entry in read_table(f"{name}.toml")[name] for code in entry["codes"])
    assert not [code for code, count in codes.items() if count > 1]


@pytest.mark.parametrize("name", ["xid", "sxid"])
def test_the_source_is_dated(name):
    table = read_table(f"{name}.toml")
    assert table["source"]
    assert date.fromisoformat(f"{table['source_date']}-01"[:10])


def test_the_source_is_named_with_its_date():
    assert "2025" in xid_source()
    assert "2023" in sxid_source()


@walk(xids().values(), lambda xid: xid.code)
def test_an_entry_is_whole(xid):
    assert xid.meaning.endswith(".")
    assert action_text(xid.immediate)
    assert action_text(xid.then)
    assert xid.outcome in (FAIL, WARN, PASS)
    # Only the GPU's own faults take a machine out of service; a job's mistake never does.
    assert xid.outcome is not FAIL or xid.kind in (XidKind.HARDWARE, XidKind.DRIVER)
    assert xid.kind is not XidKind.SYMPATHETIC or xid.outcome is PASS


def test_every_action_is_used():
    used = {action for xid in xids().values() for action in (xid.immediate, xid.then)}
    assert used == set(read_table("xid.toml")["actions"])


@pytest.mark.parametrize(
    ("code", "kind", "outcome"),
    [
        (13, XidKind.APPLICATION, WARN),
        (31, XidKind.APPLICATION, WARN),
        (43, XidKind.SYMPATHETIC, PASS),
        (45, XidKind.SYMPATHETIC, PASS),
        (48, XidKind.HARDWARE, FAIL),
        (63, XidKind.HARDWARE, WARN),
        (64, XidKind.HARDWARE, FAIL),
        (74, XidKind.HARDWARE, FAIL),
        (79, XidKind.HARDWARE, FAIL),
        (92, XidKind.HARDWARE, WARN),
        (94, XidKind.HARDWARE, WARN),
        (95, XidKind.HARDWARE, FAIL),
        (109, XidKind.HARDWARE, FAIL),
        (119, XidKind.HARDWARE, FAIL),
        (140, XidKind.HARDWARE, FAIL),
        (154, XidKind.INFORMATIONAL, PASS),
    ],
)
def test_the_codes_that_people_meet(code, kind, outcome):
    assert (xids()[code].kind, xids()[code].outcome) == (kind, outcome)


def test_an_nvlink5_error_depends_on_what_its_line_says():
    assert {xids()[code].outcome for code in range(144, 151)} == {FAIL}
    assert {xids()[code].nonfatal_outcome for code in range(144, 150)} == {PASS}
    assert xids()[150].nonfatal_outcome is WARN


def test_codes_that_no_driver_in_use_reports_are_unknown():
    assert not {1, 12, 14, 30, 50, 91, 177} & set(xids())


def test_an_action_that_did_not_help_is_followed_by_the_next_one():
    steps = ["watch"]
    while steps[-1] != "contact_support":
        steps.append(escalated(steps[-1]))
    assert steps[1:] == ["restart_application", "reset_gpu", "restart_machine", "contact_support"]
    assert escalated("contact_support") == "contact_support"
    assert escalated("reset_linked_gpus") == "restart_machine"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (12020, SXidClass.ALWAYS_FATAL),
        (23009, SXidClass.ALWAYS_FATAL),
        (20034, SXidClass.FATAL),
        (24005, SXidClass.FATAL),
        (12028, SXidClass.DISTURBING),
        (11012, SXidClass.NOTE),
    ],
)
def test_switch_errors_are_in_their_class(code, expected):
    assert sxids()[code].sxid_class is expected


@walk(sxids().values(), lambda sxid: sxid.code)
def test_a_switch_entry_is_whole(sxid):
    assert sxid.meaning
    assert sxid.written_remedy.endswith(".")
