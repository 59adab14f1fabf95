"""Agents that a launcher started, one per rank: one run, one report, whoever dies."""

import signal
from collections.abc import Iterator

import pytest

from tests.ranks.grouping import WORLD_SIZE, Group
from tests.ranks.launching import Launches

pytestmark = [pytest.mark.ranks, pytest.mark.sliced]  # they tell silence from slowness: run one at a time


@pytest.fixture
def group(launches: Launches) -> Iterator[Group]:
    group = Group(launches)
    yield group
    group.kill()


@pytest.mark.each_run
def test_agents_agree_on_one_run_and_the_lowest_rank_reports_it(group: Group) -> None:
    outcome = group.start("rounds").end()
    assert outcome.statuses == [0, 0, 0]
    assert [report["reporter"] for report in outcome.reports] == [0]
    run = outcome.reports[0]["run"]
    assert sorted(result["payload"]["rank"] for result in run["returned"]) == [0, 1, 2]
    assert run["launcher"] == "variables"
    assert len(run["events"]) == 5 * WORLD_SIZE


@pytest.mark.parametrize(
    "fault", ["kill:0@measure", "kill:2@1", "stop:1@warmup", "kill:1@import", "stop:2@teardown"]
)
def test_a_fault_is_reported_once_and_all_exit_alike(group: Group, fault: str) -> None:
    outcome = group.start("rounds", faults=[fault]).end()
    assert outcome.statuses == [1, 1, 1]
    assert [report["reporter"] for report in outcome.reports] == [0]
    assert outcome.incidents == [("died" if "kill" in fault else "stopped", int(fault[5]))]
    assert outcome.reports[0]["run"]["injected"][0]["fired"]


def test_an_exception_is_found_across_agents(group: Group) -> None:
    assert group.start("raise_on_rank_1").end().incidents == [("raised", 1)]


def test_a_silent_rank_is_found_across_agents(group: Group) -> None:
    assert group.start("idle_on_rank_1").end().incidents == [("silent", 1)]


def test_a_stall_is_found_across_agents(group: Group) -> None:
    outcome = group.start("stall").end()
    assert outcome.incidents == [("stalled", 0)]


def test_a_killed_follower_is_named_and_the_leader_reports(group: Group) -> None:
    group.start("wait").wait_for_ranks()
    group.programs[2].kill()
    outcome = group.end()
    assert outcome.statuses == [1, 1, -signal.SIGKILL]
    assert [report["reporter"] for report in outcome.reports] == [0]
    assert outcome.incidents == [("died", 2)]


@pytest.mark.each_run
def test_a_killed_leader_is_named_and_the_next_rank_reports(group: Group) -> None:
    group.start("wait").wait_for_ranks()
    group.programs[0].kill()
    outcome = group.end()
    assert outcome.statuses == [-signal.SIGKILL, 1, 1]
    assert [report["reporter"] for report in outcome.reports] == [1]
    assert outcome.incidents == [("died", 0)]


def test_two_killed_agents_are_named_by_the_last(group: Group) -> None:
    group.start("wait").wait_for_ranks()
    group.programs[0].kill()
    group.programs[1].kill()
    outcome = group.end()
    assert outcome.statuses[2] == 1
    assert [report["reporter"] for report in outcome.reports] == [2]
    assert sorted(outcome.incidents) == [("died", 0), ("died", 1)]


def test_a_stopped_follower_is_named_and_killed(group: Group) -> None:
    group.start("wait").wait_for_ranks()
    group.programs[1].send_signal(signal.SIGSTOP)
    outcome = group.end()
    assert outcome.incidents == [("silent", 1)]
    assert outcome.statuses == [1, -signal.SIGKILL, 1]


def test_a_stopped_leader_is_replaced_and_named(group: Group) -> None:
    group.start("wait").wait_for_ranks()
    group.programs[0].send_signal(signal.SIGSTOP)
    outcome = group.end()
    assert [report["reporter"] for report in outcome.reports] == [1]
    assert ("died", 0) in outcome.incidents or ("silent", 0) in outcome.incidents


def test_no_agent_ends_before_the_report_is_out(group: Group) -> None:
    group.start("rounds", faults=["kill:1@measure"], report_seconds=1.0)
    followers = group.programs[1:]
    leader_output = group.programs[0].stdout
    assert leader_output is not None
    for line in leader_output:
        if '"run"' in line:
            assert [program.poll() for program in followers] == [None, None]
            break
    group.end()
    assert [program.returncode for program in group.programs] == [1, 1, 1]


def test_an_interrupted_agent_ends_all_without_a_report(group: Group) -> None:
    group.start("wait").wait_for_ranks()
    group.programs[1].send_signal(signal.SIGINT)
    outcome = group.end()
    assert outcome.reports == []
    assert 0 not in outcome.statuses
    assert 1 not in outcome.statuses


def test_sigterm_for_all_ends_all_without_a_report(group: Group) -> None:
    group.start("wait").wait_for_ranks()
    for program in group.programs:
        program.terminate()
    outcome = group.end()
    assert outcome.reports == []
    assert outcome.statuses == [143, 143, 143]


def test_sigterm_after_a_death_does_not_stop_the_report(group: Group) -> None:
    group.start("wait").wait_for_ranks()
    group.programs[0].kill()
    for program in group.programs[1:]:  # as torchrun does when one of its processes has died
        program.terminate()
    outcome = group.end()
    assert [report["reporter"] for report in outcome.reports] == [1]
    assert outcome.incidents == [("died", 0)]


def test_a_rank_started_twice_is_refused(group: Group) -> None:
    group.start("wait").wait_for_ranks()
    twin = Group(group.launches).start("wait", ranks=(1,))
    assert twin.end().errors == ["rank 1 was started twice in this run"]
    for program in group.programs:
        program.terminate()
    group.end()


def test_an_import_that_fails_on_all_ranks_is_told_of_all(group: Group) -> None:
    outcome = group.start("rounds", preload=["tests.ranks.broken_import"]).end()
    assert sorted(outcome.incidents) == [("raised", rank) for rank in range(3)]
    assert [report["reporter"] for report in outcome.reports] == [0]
    assert outcome.statuses == [1, 1, 1]


@pytest.mark.parametrize("broken", [0, 2])
def test_an_import_that_fails_on_one_rank_names_that_rank(group: Group, broken: int) -> None:
    for rank in range(WORLD_SIZE):
        module = "tests.ranks.broken_import" if rank == broken else "tests.ranks.slow_import"
        group.start("rounds", ranks=(rank,), preload=[module])
    outcome = group.end()
    assert outcome.incidents == [("raised", broken)]
    assert outcome.reports[0]["run"]["incidents"][0]["stage"] == "import"
    assert outcome.statuses == [1, 1, 1]


def test_another_number_of_ranks_is_told_as_such(group: Group) -> None:
    group.start("wait", ranks=(0,))
    group.start("wait", ranks=(1,), more={"WORLD_SIZE": "4"})
    outcome = group.end()
    assert outcome.incidents == [("split", 1)]
    facts = {fact["name"]: fact["value"] for fact in outcome.reports[0]["run"]["incidents"][0]["evidence"]}
    assert (facts["world_size"], facts["others_world_size"]) == (4, 3)
    assert outcome.statuses == [1, 1]


def test_a_variable_that_one_rank_has_otherwise_is_told_beside_the_results(group: Group) -> None:
    group.start("rounds", ranks=(0, 2), more={"NCCL_ALGO": "Ring"})
    outcome = group.start("rounds", ranks=(1,), more={"NCCL_ALGO": "Tree"}).end()
    assert outcome.incidents == [("skewed", 1)]
    assert len(outcome.reports[0]["run"]["returned"]) == 3
    values = [fact["value"] for fact in outcome.reports[0]["run"]["incidents"][0]["evidence"]]
    assert values == ["NCCL_ALGO", "Tree", "Ring", "1"]


def test_a_rank_that_never_comes_is_named(group: Group) -> None:
    outcome = group.start("rounds", ranks=(0, 1), rendezvous_seconds=4.0).end()
    assert outcome.incidents == [("not_started", 2)]
    assert outcome.statuses == [1, 1]


def test_a_lowest_rank_that_never_comes_is_named_by_the_next(group: Group) -> None:
    outcome = group.start("rounds", ranks=(1, 2), rendezvous_seconds=4.0).end()
    assert outcome.incidents[0] == ("not_started", 0)
    assert [report["reporter"] for report in outcome.reports] == [1]
