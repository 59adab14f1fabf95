import pytest

from gpudiag.model.finding import Outcome
from gpudiag.model.run import EventKind, RunEvent
from gpudiag.ranks.rank_run import RankEvent
from gpudiag.runs.events import PreflightEvents
from tests.unit.ranks.views import position, view
from tests.unit.render.reports import make_finding, make_report, make_result


def test_stages_are_counted_and_the_outcome_comes_last() -> None:
    heard: list[RunEvent] = []
    emitter = PreflightEvents(("collective", "active"), heard.append)
    for stage in ("look", "active", "judge"):  # the all-reduce was not needed after all
        emitter.enter(stage)
    emitter.emit_report(make_report(make_result("x", Outcome.FAIL, make_finding("gpu.lost"))))
    assert [(event.stage, event.done) for event in heard[:3]] == [("look", 0), ("active", 2), ("judge", 3)]
    assert [event.kind for event in heard[3:]] == [EventKind.FINDING, EventKind.OUTCOME]
    assert {event.planned for event in heard} == {4}


def test_a_test_begins_when_the_first_rank_is_done_with_the_one_before() -> None:
    heard: list[RunEvent] = []
    emitter = PreflightEvents(("active",), heard.append)
    take = emitter.listen_to_tests(("memory_copy", "matmul"))
    for rank in (0, 1):
        for test in ("memory_copy", "matmul"):
            take(RankEvent(rank, 1.0, {"kind": "done", "test": test}))
    assert [event.stage for event in heard] == ["memory_copy", "matmul"]


def test_where_ranks_are_is_emitted_when_it_changes_and_rarely_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr("gpudiag.runs.events.monotonic", lambda: now)
    heard: list[RunEvent] = []
    emitter = PreflightEvents(("active",), heard.append)
    times = []
    for tick in range(81):  # every 100 ms; the rank enters another collective after 3 s
        now = 100.0 + tick / 10
        before = len(heard)
        still = now - (103.0 if tick >= 30 else 100.0)
        emitter.standings.add(
            [view(0, position=position(sequence=int(tick >= 30), op=f"op{tick >= 30}"), still_seconds=still)]
        )
        times += [tick] * (len(heard) - before)
    assert times == [0, 30, 80]
    assert [event.kind for event in heard] == [EventKind.RANKS] * len(heard)
    assert heard[1].ranks[0].operation == "opTrue float32[1024]"
