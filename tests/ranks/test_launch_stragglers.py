"""A late rank is named by its arrival, with the reason why it is late."""

import os

import pytest

from gpudiag.model.measure import Incident, IncidentKind
from gpudiag.ranks.agents.launch import TORCH
from gpudiag.ranks.rank_run import RankRun
from tests.ranks.launching import Launches, facts

pytestmark = [pytest.mark.ranks, pytest.mark.sliced]


def late(run: RankRun) -> list[Incident]:
    return [incident for incident in run.incidents if incident.kind is IncidentKind.LATE]


@pytest.mark.each_run
def test_a_slow_rank_is_late_and_its_victims_are_not(launches: Launches) -> None:
    # Little work, and much later than other programs on this machine can make the others.
    arguments = {"work_seconds": 0.0005}
    run = launches.run(
        "many_all_reduces", world_size=4, arguments=arguments, faults=["slow:3:80"], preload=TORCH
    )
    (incident,) = late(run)
    assert incident.rank == 3
    assert float(facts(incident)["late_by"]) >= 0.03
    assert str(facts(incident)["cause"]).startswith("off the processor")


def test_a_rank_that_computes_longer_is_told_so(launches: Launches) -> None:
    # Where it may not run ahead, another program may hold the rank up for longer than it computes: then that
    # is the cause.
    arguments = {"pin": True, "ahead": True, "hard_worker": 1}
    for _ in range(8):
        run = launches.run("many_all_reduces", world_size=2, arguments=arguments, preload=TORCH)
        (incident,) = late(run)
        told = facts(incident)
        if float(told["late_in_total"]) < 1.5 * float(told["computed_longer"]):
            break
    assert incident.rank == 1
    assert float(told["computed_longer"]) >= 1.0  # 30 times 45 ms
    assert told["cause"] == "compute late"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")
def test_a_rank_that_waits_for_its_processor_is_host_late(launches: Launches) -> None:
    arguments = {"pin": True, "ahead": True, "crowded": 1}
    run = launches.run("many_all_reduces", world_size=2, arguments=arguments, preload=TORCH)
    (incident,) = late(run)
    assert incident.rank == 1
    assert str(facts(incident)["cause"]).startswith("host late")
    assert facts(incident)["involuntary_switches"] > 0
