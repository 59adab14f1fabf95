"""Real process groups: every fault at every stage, on gloo."""

import pytest

from gpudiag.model.measure import IncidentKind
from gpudiag.ranks.agents.launch import TORCH
from gpudiag.ranks.stages import STAGES
from tests.ranks.launching import Launches

pytestmark = pytest.mark.ranks


def test_ranks_meet_and_sum(launches: Launches) -> None:
    run = launches.run("all_reduces", world_size=3, preload=TORCH)
    assert run.incidents == ()
    assert dict(run.results) == {rank: {"sum": 6.0} for rank in range(3)}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(("fault", "kind"), [("kill", IncidentKind.DIED), ("stop", IncidentKind.STOPPED)])
def test_the_culprit_is_named_and_not_those_who_lost_the_connection(
    launches: Launches, fault: str, kind: IncidentKind, stage: str
) -> None:
    run = launches.run("all_reduces", faults=[f"{fault}:1@{stage}"], preload=TORCH)
    assert [(incident.kind, incident.rank, incident.stage) for incident in run.incidents] == [
        (kind, 1, stage)
    ]
