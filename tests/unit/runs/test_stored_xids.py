"""Which Xids of the kernel log a run stores: of a flood the gravest and the newest."""

from gpudiag.store.history import STORED_XIDS, _xids
from tests.unit.checks.kernel_events import xid
from tests.unit.model.nouns import make_device, make_snapshot


def test_of_a_flood_the_gravest_and_the_newest_are_stored():
    flood = [xid(31, minutes_ago=10_000 - number, rest=f"Ch {number}") for number in range(STORED_XIDS * 3)]
    log = (flood[0], xid(79, minutes_ago=9_999.5), *flood[1:])
    stored = _xids(make_snapshot(make_device(0), kernel_log=log))
    assert [event.xid_code for event in stored] == [79, *([31] * (STORED_XIDS - 1))]
    assert stored[-1].text == flood[-1].text
