"""From views to incidents: the decision tree, and what must not raise an alarm."""

from dataclasses import replace
from importlib.metadata import version

import pytest

from gpudiag.model.evidence import Evidence
from gpudiag.model.measure import Incident, IncidentKind
from gpudiag.ranks.diagnosis.view import Life, RaisedError, RankView
from gpudiag.ranks.diagnosis.watchdog import find_incidents, is_settled
from gpudiag.ranks.stages import ENDLESS, USUAL, Budgets, Operation, Patience
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


def test_a_signal_comes_with_torchs_debugging_where_that_is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "detail")
    (incident,) = find(view(0), ended(1, -11), view(2))
    assert fact(incident, "TORCH_DISTRIBUTED_DEBUG") == "DETAIL"
    assert fact(incident, "torch_version") == version("torch")
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "INFO")
    assert len(find(ended(1, -11))[0].evidence) < len(incident.evidence)


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


def test_ranks_that_stand_still_when_the_time_is_over_are_stuck_and_not_slow() -> None:
    inside = position(predicted_seconds=None)
    still = [view(rank, position=inside, still_seconds=9.0) for rank in (0, 1)]
    assert find_incidents(still, Budgets(run_seconds=25.0), 25.0, 120.0) == ()
    at_end = Budgets(run_seconds=25.0).at_the_end(1.0)
    (incident,) = find_incidents(still, at_end, 25.0, 120.0)
    assert incident.kind is IncidentKind.STALLED
    assert find_incidents(still, Budgets(run_seconds=25.0).at_the_end(2.0), 25.0, 120.0) == ()  # a busy host


def test_of_a_rank_that_others_ran_ahead_of_the_first_collective_that_it_missed_is_named() -> None:
    ran = Operation(25, "all_reduce", "float32", 1024, 0.001)
    end = {"op": "end of all_reduce", "sequence": 64, "predicted_seconds": 0.1}
    waiting = view(0, position=position(**end, history=(ran,)), still_seconds=9.0)
    missing = view(1, position=position(sequence=24, inside=False), still_seconds=9.0)
    (incident,) = find(waiting, missing)
    assert fact(incident, "waited_in") == "all_reduce float32[1024] (collective 25)"


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


def test_a_rank_that_ended_well_while_another_one_waits_for_it_has_ended_early() -> None:
    gone = ended(1, 0, finished=True, finished_at=4.0, position=position(sequence=4, inside=False))
    waiting = view(0, position=position(sequence=5), still_seconds=1.1)
    (incident,) = find(waiting, gone)
    assert (incident.kind, incident.rank, incident.at_seconds) == (IncidentKind.ENDED, 1, 4.0)
    assert fact(incident, "waited_in") == "all_reduce float32[1024] (collective 5)"
    assert fact(incident, "waiting_rank") == 0


def test_an_end_before_the_others_is_the_cause_of_their_lost_connections() -> None:
    gone = view(1, finished=True, finished_at=4.0, position=position("teardown", 7, inside=False))
    lost = view(0, raised=raised(LOST_CONNECTION, at=4.1))
    assert blamed(lost, gone) == [(IncidentKind.ENDED, 1)]
    assert blamed(lost, replace(gone, finished_at=4.2)) == [(IncidentKind.RAISED, 0)]


def test_a_lost_connection_after_the_result_is_nobody_elses_early_end() -> None:
    gone = ended(1, 0, finished=True, finished_at=4.0)
    assert blamed(view(0, finished=True, raised=raised(LOST_CONNECTION)), gone) == [(IncidentKind.RAISED, 0)]


def test_the_first_of_two_early_ends_comes_first() -> None:
    gone = [ended(rank, 0, finished=True, finished_at=4.0 - rank) for rank in (1, 2)]
    lost = view(0, raised=raised(LOST_CONNECTION, at=4.1))
    assert blamed(lost, *gone) == [(IncidentKind.ENDED, 2), (IncidentKind.ENDED, 1)]


def certain(*views: RankView, patience: Patience = USUAL) -> list[tuple[IncidentKind, int]]:
    found = find_incidents(views, Budgets(), 10.0, 120.0, patience)
    return [(incident.kind, incident.rank) for incident in found]


def test_a_stop_is_certain_once_it_has_outlasted_the_patience() -> None:
    stopped = view(1, Life.STOPPED, changed_at=5.0, process_state="T", still_seconds=1.9)
    assert certain(view(0), stopped) == []
    assert certain(view(0), replace(stopped, still_seconds=2.1)) == [(IncidentKind.STOPPED, 1)]
    assert certain(view(0), replace(stopped, still_seconds=2.1, load=3.0)) == []
    assert certain(view(0), replace(stopped, still_seconds=500.0), patience=ENDLESS) == []


def test_a_stop_that_may_heal_explains_the_hang_meanwhile() -> None:
    outside = position(sequence=None)
    stopped = view(1, Life.STOPPED, position=outside, changed_at=5.0, still_seconds=4.0, load=3.0)
    waiting = view(0, still_seconds=6.0)
    assert certain(waiting, stopped) == []
    assert certain(waiting, replace(stopped, still_seconds=5.5)) == [(IncidentKind.STOPPED, 1)]


def test_a_stall_between_all_ranks_is_an_outage_for_some_seconds() -> None:
    assert certain(*(view(rank, still_seconds=9.0) for rank in range(4))) == []
    assert certain(*(view(rank, still_seconds=10.2) for rank in range(4))) == [(IncidentKind.STALLED, 0)]


def test_a_rank_that_stays_away_is_certain_after_two_seconds() -> None:
    outside = view(1, position=position(sequence=None), still_seconds=5.0, process_state="S")
    assert certain(view(0, still_seconds=2.0), outside) == []
    assert certain(view(0, still_seconds=2.3), outside) == [(IncidentKind.SILENT, 1)]


def test_a_rank_that_has_only_just_come_to_rest_is_not_blamed() -> None:
    """As after a pause of its machine: its agent has counted nothing meanwhile, the others have."""
    outside = view(1, position=position(sequence=None), still_seconds=0.2, process_state="S")
    assert find(view(0, still_seconds=5.0), outside) == ()


def test_a_rank_inside_an_earlier_collective_keeps_out_of_nothing() -> None:
    earlier = view(1, position=position(sequence=4), still_seconds=1.5)
    later = view(0, position=position(sequence=5), still_seconds=1.5)
    outside = view(2, position=position(sequence=3, inside=False), still_seconds=1.5)
    assert blamed(later, earlier) == [(IncidentKind.STALLED, 0)]
    assert blamed(later, earlier, outside) == [(IncidentKind.SILENT, 2)]


def test_a_rank_stuck_in_work_of_its_own_is_named_and_not_the_barrier_that_others_wait_in() -> None:
    """As with a GPU that never ends a copy: the ranks take steps in turn, and meet after each."""
    own = {"op": "host_to_device", "dtype": "", "elements": 0, "predicted_seconds": None}
    barrier = {**own, "op": "barrier", "elements": 1}
    limit = Budgets().seconds_for("measure") + 60.0
    stuck = view(1, position=position(sequence=4, **own), still_seconds=limit)
    waiting = view(0, position=position(sequence=5, **barrier), still_seconds=limit)
    assert blamed(waiting, stuck) == [(IncidentKind.SILENT, 1)]
    assert blamed(waiting, replace(stuck, still_seconds=5.0)) == []  # it may take long
    behind = view(2, position=position(sequence=3, **barrier), still_seconds=limit)
    assert blamed(waiting, behind) == [(IncidentKind.STALLED, 0)]  # it waits, too


def test_limits_grow_with_the_load_of_the_host() -> None:
    outside = view(1, position=position(sequence=None), still_seconds=5.0, process_state="S", load=4.0)
    assert find(view(0, still_seconds=3.9), outside) == ()
    assert blamed(view(0, still_seconds=4.1), outside) == [(IncidentKind.SILENT, 1)]
    assert certain(view(0, still_seconds=5.1), replace(outside, still_seconds=5.1)) == []


def test_a_death_ends_all_patience() -> None:
    stopped = view(1, Life.STOPPED, changed_at=4.0, process_state="T", still_seconds=0.5)
    assert certain(ended(0, -9), stopped, patience=ENDLESS) == [
        (IncidentKind.STOPPED, 1),
        (IncidentKind.DIED, 0),
    ]


def test_an_old_stop_does_not_settle_a_new_death() -> None:
    stopped = view(1, Life.STOPPED, changed_at=4.0, process_state="T", still_seconds=1.1)
    assert not is_settled((stopped, ended(0, -9, at=5.0)), now=5.1)
    assert is_settled((stopped, view(0)), now=5.1)


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
    assert blamed(waiting, replace(behind, process_state="D", still_seconds=31.0)) == [
        (IncidentKind.SILENT, 1)
    ]
    assert find(waiting, replace(behind, process_state="R")) == ()
    assert find(waiting, replace(behind, has_gpu=True)) == ()
    assert find(replace(waiting, still_seconds=0.5), behind) == ()


def test_a_rank_that_hangs_in_teardown_is_silent_though_it_is_finished() -> None:
    done = ended(0, 0, at=1.0, finished=True, position=position("teardown", 7, sequence=20, inside=False))
    hangs = view(
        1, position=position("verify", 6, sequence=20, inside=False), still_seconds=2.0, finished=True
    )
    assert blamed(done, hangs) == [(IncidentKind.SILENT, 1)]


def test_a_rank_that_never_ends_is_silent_where_others_have_ended() -> None:
    last = position("teardown", 7, sequence=20, inside=False)
    done = [ended(rank, 0, at=1.0, finished=True, position=last) for rank in range(3)]
    stays = view(3, position=last, still_seconds=32.0, finished=True)
    (incident,) = find(*done, stays)
    assert (incident.kind, incident.rank) == (IncidentKind.SILENT, 3)
    assert (fact(incident, "waited_in"), fact(incident, "waited_for")) == ("the end of the run", 32.0)
    stalled = [replace(stays, rank=rank) for rank in range(4)]
    assert blamed(*stalled) == [(IncidentKind.STALLED, 0)]


def test_an_absent_rank_is_waited_for() -> None:
    absent = view(2, Life.NOT_STARTED, position=None, pid=None, agent_came=False)
    waiting = [view(rank, still_seconds=50.0) for rank in range(2)]
    assert find(*waiting, absent, now=119.0) == ()
    (incident,) = find(*waiting, absent, now=121.0)
    assert (incident.kind, incident.rank, incident.stage) == (IncidentKind.NOT_STARTED, 2, "import")


def test_an_agent_that_says_nothing_is_silent() -> None:
    assert blamed(view(0), view(1, silent_seconds=2.5)) == [(IncidentKind.SILENT, 1)]


def test_old_news_of_a_rank_are_no_reason_to_blame_it() -> None:
    outside = view(1, position=position(sequence=None), still_seconds=2.0, silent_seconds=0.8)
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
