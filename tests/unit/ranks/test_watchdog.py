"""From views to incidents: the decision tree, and what must not raise an alarm."""

from dataclasses import replace

import pytest

from gpudiag.model.evidence import Evidence
from gpudiag.model.measure import Incident, IncidentKind
from gpudiag.ranks.stages import Budgets
from gpudiag.ranks.view import Life, RaisedError, RankView
from gpudiag.ranks.watchdog import find_incidents, is_settled
from tests.unit.ranks.views import position, view

LOST_CONNECTION = "[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:40112"


def find(*views: RankView, now: float = 10.0, absent_after: float = 120.0) -> tuple[Incident, ...]:
    return find_incidents(views, Budgets(), now, absent_after)


def blamed(*views: RankView) -> list[tuple[IncidentKind, int]]:
    return [(incident.kind, incident.rank) for incident in find(*views)]


def fact(incident: Incident, name: str) -> object:
    return next(evidence.value for evidence in incident.evidence if evidence.name == name)


def raised(message: str, at: float = 5.0) -> RaisedError:
    return RaisedError("RuntimeError", message, "train.py:7", at)


def ended(rank: int, exit_status: int | None, at: float = 5.0, **options: object) -> RankView:
    return view(rank, Life.ENDED, exit=exit_status, changed_at=at, **options)


def test_nothing_is_wrong_while_ranks_move() -> None:
    assert find(view(0), view(1), view(2)) == ()


def test_nothing_is_wrong_when_all_have_ended_well() -> None:
    assert find(*(ended(rank, 0, finished=True) for rank in range(3))) == ()


def test_a_signal_is_a_death_with_its_name() -> None:
    (incident,) = find(view(0), ended(1, -9), view(2))
    assert (incident.kind, incident.rank, incident.stage, incident.at_seconds) == ("died", 1, "measure", 5.0)
    assert fact(incident, "signal") == "SIGKILL"


def test_an_exit_status_is_a_death_too() -> None:
    assert fact(find(ended(0, 3))[0], "exit_status") == 3


def test_an_end_without_a_result_is_a_death() -> None:
    assert blamed(ended(0, 0), view(1)) == [(IncidentKind.DIED, 0)]


def test_a_bad_end_after_the_result_is_a_death_in_its_stage() -> None:
    last = position("teardown", 7, sequence=20, inside=False)
    (incident,) = find(ended(0, -11, finished=True, position=last), ended(1, 0, finished=True))
    assert (incident.kind, incident.stage) == (IncidentKind.DIED, "teardown")


def test_lost_connections_are_consequences_even_if_they_were_written_down_first() -> None:
    survivors = [ended(rank, 1, at=4.9, raised=raised(LOST_CONNECTION, at=4.9)) for rank in (0, 2)]
    assert blamed(survivors[0], ended(1, -9, at=5.0), survivors[1]) == [(IncidentKind.DIED, 1)]


def test_lost_connections_alone_name_the_first_that_saw_it() -> None:
    views = [ended(rank, 1, raised=raised(LOST_CONNECTION, at=5.0 - rank)) for rank in range(3)]
    assert blamed(*views) == [(IncidentKind.RAISED, 2)]


def test_of_two_deaths_the_earlier_comes_first() -> None:
    assert blamed(ended(0, -9, at=5.2), ended(1, -11, at=5.1)) == [
        (IncidentKind.DIED, 1),
        (IncidentKind.DIED, 0),
    ]


def test_an_exception_of_its_own_is_told_with_message_and_line() -> None:
    (incident,) = find(
        view(0, raised=raised("CUDA error: an illegal memory access was encountered")), view(1)
    )
    assert incident.kind is IncidentKind.RAISED
    assert fact(incident, "exception") == "RuntimeError"
    assert fact(incident, "raised_at") == "train.py:7"


def test_a_stop_is_believed_once_it_has_lasted() -> None:
    stopped = view(1, Life.STOPPED, changed_at=5.0, process_state="T")
    assert find(view(0), replace(stopped, still_seconds=0.2)) == ()
    assert blamed(view(0), replace(stopped, still_seconds=0.4)) == [(IncidentKind.STOPPED, 1)]


def test_a_death_explains_a_hang() -> None:
    waiting = view(0, still_seconds=5.0)
    assert blamed(waiting, ended(1, -9)) == [(IncidentKind.DIED, 1)]


def test_the_rank_outside_is_silent() -> None:
    outside = view(1, position=position(sequence=None), still_seconds=1.2, process_state="S")
    (incident,) = find(view(0, still_seconds=1.1), outside, view(2, still_seconds=1.1))
    assert (incident.kind, incident.rank) == (IncidentKind.SILENT, 1)
    assert incident.at_seconds == pytest.approx(8.8)
    assert fact(incident, "waited_in") == "all_reduce float32[1024] (collective 0)"
    assert fact(incident, "place") == "train.py:12"


def test_a_rank_that_returned_from_the_last_collective_and_ended_is_silent() -> None:
    gone = ended(1, 0, finished=True, position=position(sequence=4, inside=False))
    waiting = view(0, position=position(sequence=5), still_seconds=1.1)
    assert blamed(waiting, gone) == [(IncidentKind.SILENT, 1)]


def test_nobody_is_silent_before_the_stall_limit() -> None:
    outside = view(1, position=position(sequence=None), still_seconds=5.0)
    assert find(view(0, still_seconds=0.9), outside) == ()


def test_the_stall_limit_is_ten_times_the_predicted_time() -> None:
    slow = position(predicted_seconds=0.5)
    outside = view(1, position=position(sequence=None), still_seconds=6.0)
    assert find(view(0, position=slow, still_seconds=4.9), outside) == ()
    assert blamed(view(0, position=slow, still_seconds=5.1), outside) == [(IncidentKind.SILENT, 1)]


def test_without_a_prediction_the_budget_of_the_stage_holds() -> None:
    unknown = position(predicted_seconds=None)
    outside = view(1, position=position(sequence=None), still_seconds=59.0, cpu_seconds=59.0)
    assert find(view(0, position=unknown, still_seconds=59.0), outside) == ()


def test_a_rank_that_works_gets_more_time() -> None:
    working = view(1, position=position(sequence=None), still_seconds=5.0, cpu_seconds=4.0)
    assert find(view(0, still_seconds=5.0), working) == ()
    working = replace(working, still_seconds=10.5, cpu_seconds=9.0)
    assert blamed(view(0, still_seconds=10.5), working) == [(IncidentKind.SILENT, 1)]


def test_all_inside_is_a_stall_of_all() -> None:
    (incident,) = find(*(view(rank, still_seconds=1.5) for rank in range(4)))
    assert (incident.kind, incident.rank) == (IncidentKind.STALLED, 0)
    assert fact(incident, "ranks_inside") == "0-3"


def test_a_late_arrival_is_not_a_stall() -> None:
    assert find(view(0, still_seconds=1.5), view(1, still_seconds=0.1)) == ()


def test_ranks_that_spin_inside_get_more_time() -> None:
    assert find(*(view(rank, still_seconds=2.0, cpu_seconds=2.0) for rank in range(2))) == ()


def test_a_stage_budget_blames_those_behind() -> None:
    waiting = view(0, position=position("init", 3, sequence=None), still_seconds=121.0)
    behind = view(
        1, position=position("rendezvous", 2, sequence=None), still_seconds=121.0, cpu_seconds=100.0
    )
    assert blamed(waiting, behind) == [(IncidentKind.SILENT, 1)]


def test_a_stage_budget_blames_all_where_nobody_is_behind() -> None:
    views = [
        view(rank, position=position("init", 3, sequence=None), still_seconds=121.0) for rank in range(2)
    ]
    assert blamed(*views) == [(IncidentKind.STALLED, 0)]


def test_an_idle_rank_left_behind_is_silent_long_before_the_budget() -> None:
    waiting = view(0, position=position("init", 3, sequence=None), still_seconds=2.0)
    behind = view(1, position=position("import", 1, sequence=None), still_seconds=2.0, process_state="S")
    assert blamed(waiting, behind) == [(IncidentKind.SILENT, 1)]
    assert find(waiting, replace(behind, cpu_seconds=1.5)) == ()
    assert find(waiting, replace(behind, process_state="D")) == ()
    assert find(waiting, replace(behind, process_state="R")) == ()
    assert find(waiting, replace(behind, has_gpu=True)) == ()
    assert find(replace(waiting, still_seconds=0.5), behind) == ()


def test_a_rank_that_hangs_in_teardown_is_silent_though_it_is_finished() -> None:
    done = ended(0, 0, at=1.0, finished=True, position=position("teardown", 7, sequence=20, inside=False))
    hangs = view(
        1, position=position("verify", 6, sequence=20, inside=False), still_seconds=2.0, finished=True
    )
    assert blamed(done, hangs) == [(IncidentKind.SILENT, 1)]


def test_an_absent_rank_is_waited_for() -> None:
    absent = view(2, Life.NOT_STARTED, position=None, pid=None)
    waiting = [view(rank, still_seconds=50.0) for rank in range(2)]
    assert find(*waiting, absent, now=119.0) == ()
    (incident,) = find(*waiting, absent, now=121.0)
    assert (incident.kind, incident.rank, incident.stage) == (IncidentKind.NOT_STARTED, 2, "import")


def test_an_agent_that_says_nothing_is_silent() -> None:
    assert blamed(view(0), view(1, unheard_seconds=2.5)) == [(IncidentKind.SILENT, 1)]


def test_old_news_of_a_rank_are_no_reason_to_blame_it() -> None:
    outside = view(1, position=position(sequence=None), still_seconds=2.0, unheard_seconds=0.8)
    assert find(view(0, still_seconds=2.0), outside) == ()


def test_what_the_agent_read_about_an_end_is_evidence() -> None:
    killed = Evidence("oom_killer", "Out of memory: Killed process 1001 (python)", source="kernel log")
    (incident,) = find(view(0), ended(1, -9, traces=(killed,)))
    assert killed in incident.evidence


def test_symptoms_settle_before_they_are_judged() -> None:
    views = (view(0), ended(1, -9, at=5.0))
    assert not is_settled(views, now=5.1)
    assert is_settled(views, now=5.3)


def test_a_lost_connection_alone_takes_longer_to_settle() -> None:
    views = (view(0), ended(1, 1, raised=raised(LOST_CONNECTION, at=5.0)))
    assert not is_settled(views, now=5.5)
    assert is_settled(views, now=6.1)


def test_no_symptom_is_settled() -> None:
    assert is_settled((view(0), view(1)), now=0.0)
