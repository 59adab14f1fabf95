"""What a report says was ruled out, and that it is only said where it was looked at."""

from dataclasses import replace

from gpudiag.model.evidence import Evidence
from gpudiag.model.measure import IncidentKind
from gpudiag.ranks.diagnosis.ruled_out import of_incident
from gpudiag.ranks.diagnosis.view import Life, RankView
from gpudiag.ranks.diagnosis.watchdog import find_incidents
from gpudiag.ranks.stages import Budgets, Operation
from tests.unit.ranks.views import position, view

ENTERED = (Operation(0, "all_reduce", "float32", 1024, 0.001),)


def told(rank: int, **options: object) -> RankView:
    """A rank that waits inside collective 0, and has told that it entered it."""
    seen = view(rank, **options)
    return replace(seen, position=seen.position and replace(seen.position, history=ENTERED))


def ruled_out(*views: RankView) -> str:
    """What the first incident excludes."""
    incident = find_incidents(views, Budgets(), 10.0, 120.0)[0]
    return "".join(str(fact.value) for fact in incident.evidence if fact.name == "ruled_out")


def test_a_rank_that_stays_away_is_neither_dead_nor_slow_nor_elsewhere() -> None:
    away = replace(told(1, still_seconds=2.0), position=position(sequence=None))
    said = ruled_out(told(0, still_seconds=2.0), told(2, still_seconds=2.0), away)
    assert "stopped process (all 3 run)" in said
    assert "only slow (it used 0.00 s of CPU time in 2.00 s)" in said
    assert "what ranks 0 and 2 announced agrees" in said


def test_of_ranks_that_are_all_inside_nobody_stayed_away() -> None:
    said = ruled_out(*(told(rank, still_seconds=2.0) for rank in range(2)))
    assert "a missing rank (all 2 are inside)" in said


def test_the_oom_killer_is_ruled_out_where_its_counter_was_read() -> None:
    dead = view(1, Life.ENDED, exit=-9, changed_at=5.0)
    counted = replace(dead, traces=(Evidence("oom_kills", 0, source="memory.events"),))
    killed = replace(dead, traces=(Evidence("oom_kills", 1, source="memory.events"),))
    assert "the OOM killer" in ruled_out(view(0), counted)
    assert "the OOM killer" not in ruled_out(view(0), killed)
    assert "the OOM killer" not in ruled_out(view(0), dead)


def test_nobody_is_cleared_where_several_failed() -> None:
    dead = [view(rank, Life.ENDED, exit=-9, changed_at=5.0) for rank in range(2)]
    (first, _) = find_incidents(dead, Budgets(), 10.0, 120.0)
    assert first.kind is IncidentKind.DIED
    assert of_incident(first, dead) == ()
