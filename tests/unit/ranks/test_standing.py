"""Where ranks are and which wait for which, as it is shown while a run goes on."""

from gpudiag.ranks.diagnosis.standing import list_standings
from gpudiag.ranks.diagnosis.view import Life
from tests.unit.ranks.views import position, view


def waits(*views):
    standings = list_standings(views)
    return [one.rank for one in standings if one.waits], [one.rank for one in standings if one.behind]


def test_ranks_inside_a_collective_wait_for_the_one_that_has_not_entered_it():
    ahead = [view(rank, position=position(sequence=7), still_seconds=3.04) for rank in (0, 1)]
    late = view(2, position=position(sequence=6, inside=False))
    assert waits(*ahead, late) == ([0, 1], [2])
    first = list_standings((*ahead, late))[0]
    assert (first.operation, first.stage, first.life) == ("all_reduce float32[1024]", "measure", "alive")
    assert first.still_seconds == 3.0


def test_nobody_waits_where_all_are_inside_the_same_one():
    assert waits(*(view(rank) for rank in range(3))) == ([], [])


def test_a_rank_that_works_waits_for_nobody():
    alone = view(0, position=position(sequence=7, elements=0, dtype="", op="matmul"))
    outside = view(1, position=position(sequence=7, inside=False))
    assert waits(alone, outside, view(2, position=position(sequence=6, inside=False))) == ([], [])


def test_in_the_rendezvous_ranks_wait_for_those_that_are_not_there():
    there = view(0, position=position("rendezvous", 2, sequence=None))
    absent = view(1, Life.NOT_STARTED, position=None, pid=None)
    assert waits(there, absent) == ([0], [1])
    assert list_standings((there, absent))[1].life == "not_started"


def test_a_dead_rank_is_waited_for_and_one_that_has_finished_is_not():
    inside = view(0, position=position(sequence=7))
    assert waits(inside, view(1, Life.ENDED, position=position(sequence=6), exit=-9)) == ([0], [1])
    done = view(1, Life.ENDED, position=position(sequence=6), finished=True, exit=0)
    assert waits(inside, done) == ([], [])
