"""What each process had of its GPU in the last ten minutes."""

from dataclasses import replace
from datetime import timedelta

from gpudiag.service.usage import RecentShares, list_processes
from tests.unit.model.nouns import TAKEN_AT, make_device, make_snapshot
from tests.unit.model.service_examples import PROCESS


def look(*memory):
    processes = tuple(
        replace(PROCESS, pid=10 + place, memory_used_bytes=size) for place, size in enumerate(memory)
    )
    return make_snapshot(replace(make_device(5), processes=processes))


def test_a_point_is_kept_every_ten_seconds_and_a_process_that_came_later_has_none_before():
    shares = RecentShares()
    for second in range(0, 31):
        shares.note(
            look(100 + second) if second < 15 else look(100 + second, 7), TAKEN_AT + timedelta(seconds=second)
        )
    document = list_processes(look(130, 7), {}, shares)
    assert [at - TAKEN_AT.timestamp() for at in document.times] == [0, 10, 20, 30]
    first, second = document.processes
    assert first.recent_memory_bytes == (100, 110, 120, 130)
    assert second.recent_memory_bytes == (None, None, 7, 7)
    assert len(first.recent_sm_percent) == 4


def test_no_more_than_ten_minutes_are_kept_and_a_clock_that_is_set_back_costs_nothing():
    shares = RecentShares()
    for step in range(100):
        shares.note(look(step), TAKEN_AT + timedelta(seconds=10 * step))
    assert len(shares.times()) == 60
    shares.note(look(1), TAKEN_AT)
    assert shares.times()[-1] == TAKEN_AT.timestamp()
