from gpudiag.model.finding import Outcome
from gpudiag.model.run import EventKind, RunEvent
from gpudiag.ranks.run import RankEvent
from gpudiag.runs.events import PreflightEvents
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
