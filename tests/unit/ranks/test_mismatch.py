"""Ranks that entered different collectives: who is named, and what both sides did."""

from dataclasses import replace

from gpudiag.model.evidence import Scalar
from gpudiag.model.measure import Incident
from gpudiag.ranks.diagnosis.mismatch import find_mismatch
from gpudiag.ranks.diagnosis.view import Life, RankView
from gpudiag.ranks.diagnosis.watchdog import find_incidents, is_settled
from gpudiag.ranks.stages import Budgets, Operation
from tests.unit.ranks.views import position, view


def entered(rank: int, *operations: tuple[int, str, str, int], **options: object) -> RankView:
    """A rank that entered these collectives: sequence, op, dtype, elements."""
    history = tuple(Operation(*operation, predicted_seconds=None) for operation in operations)
    last = history[-1].sequence if history else 0
    return view(rank, position=position(sequence=last, history=history), still_seconds=0.4, **options)


def usual(rank: int, sequence: int = 3, **options: object) -> RankView:
    return entered(rank, (sequence, "all_reduce", "float32", 64), **options)


def facts(incident: Incident) -> dict[str, Scalar]:
    return {fact.name: fact.value for fact in incident.evidence}


def test_the_same_collectives_are_no_mismatch() -> None:
    assert find_mismatch([usual(0), usual(1), usual(2)]) == ()


def test_another_place_in_the_sequence_is_no_mismatch() -> None:
    assert find_mismatch([usual(0), entered(1, (4, "broadcast", "float32", 64))]) == ()


def test_the_minority_is_named_with_both_sides() -> None:
    (incident,) = find_mismatch([usual(0), entered(1, (3, "all_reduce", "float32", 128)), usual(2)])
    assert (incident.kind, incident.rank) == ("mismatched", 1)
    assert facts(incident)["operation"] == "all_reduce float32[128]"
    assert facts(incident)["expected_operation"] == "all_reduce float32[64]"
    assert facts(incident)["sequence"] == 3


def test_rank_0_can_be_the_odd_one_out() -> None:
    (incident,) = find_mismatch([entered(0, (3, "broadcast", "float32", 64)), usual(1), usual(2)])
    assert incident.rank == 0


def test_of_two_ranks_the_higher_is_named() -> None:
    (incident,) = find_mismatch([usual(0), entered(1, (3, "all_reduce", "float64", 64))])
    assert incident.rank == 1


def test_the_first_place_where_they_part_counts() -> None:
    odd = entered(1, (3, "all_reduce", "float32", 128), (4, "broadcast", "uint8", 1))
    (incident,) = find_mismatch(
        [entered(0, (3, "all_reduce", "float32", 64), (4, "barrier", "float32", 1)), odd]
    )
    assert facts(incident)["sequence"] == 3


def test_a_rank_that_has_moved_on_is_compared_by_its_history() -> None:
    ahead = entered(1, (3, "all_reduce", "float32", 128), (4, "all_reduce", "float32", 64))
    (incident,) = find_mismatch([usual(0), ahead, usual(2)])
    assert incident.rank == 1


def test_deaths_that_follow_are_consequences() -> None:
    aborted = usual(0, life=Life.ENDED, exit=-6, changed_at=5.0)
    odd = entered(1, (3, "all_reduce", "float32", 128))
    incidents = find_incidents([aborted, odd, usual(2)], Budgets(), now=10.0, absent_after=120.0)
    assert [(incident.kind, incident.rank) for incident in incidents] == [("mismatched", 1)]
    assert facts(incidents[0])["consequences"] == "rank 0: SIGABRT"


def test_an_abort_waits_for_what_the_others_entered() -> None:
    views = [usual(0, life=Life.ENDED, exit=-6, changed_at=5.0), usual(1)]
    assert not is_settled(views, now=5.4)
    assert is_settled(views, now=5.7)


def test_nobody_is_named_while_ranks_still_move() -> None:
    moving = view(1, position=position(sequence=5), still_seconds=0.1)
    odd = entered(0, (3, "broadcast", "float32", 64))
    assert not is_settled([odd, moving, usual(2)], now=10.0)
    assert is_settled([odd, usual(1), usual(2)], now=10.0)


def test_ranks_that_move_on_for_ever_are_not_waited_for() -> None:
    moving = view(1, position=position(sequence=5), still_seconds=0.1)
    views = [replace(entered(0, (3, "broadcast", "float32", 64)), still_seconds=1.5), moving]
    views.append(replace(usual(2), still_seconds=1.5))
    assert is_settled(views, now=10.0)
