from gpudiag.model.finding import Outcome
from gpudiag.model.run import EventKind, RunEvent
from gpudiag.model.training import TrainingPlan
from gpudiag.ranks.rank_run import RankEvent
from gpudiag.runs.events import TrainingEvents
from gpudiag.runs.train import skipped_result


def test_a_rank_that_is_read_late_does_not_turn_the_stage_back() -> None:
    heard: list[RunEvent] = []
    emitter = TrainingEvents(1, heard.append)
    emitter.start_ranks()
    for rank in (0, 1):
        for kind in ("start", "step", "proof", "speed"):
            emitter.add(RankEvent(rank, 1.0, {"kind": kind}))
    assert [event.stage for event in heard] == ["import", "verify", "measure"]


def test_each_strategy_goes_through_the_stages_anew() -> None:
    heard: list[RunEvent] = []
    emitter = TrainingEvents(2, heard.append)
    for strategy in ("ddp", "fsdp2"):
        emitter.start_ranks()
        emitter.add(RankEvent(0, 1.0, {"kind": "start"}))
        emitter.emit_result(skipped_result(TrainingPlan(), strategy, 2, Outcome.ERROR, "it failed", None))
    assert [(event.kind, event.done) for event in heard] == [
        (EventKind.STAGE, 0),
        (EventKind.STAGE, 0),
        (EventKind.RESULT, 1),
        (EventKind.STAGE, 1),
        (EventKind.STAGE, 1),
        (EventKind.RESULT, 2),
    ]
    times = [event.at_seconds for event in heard]
    assert times == sorted(times)
