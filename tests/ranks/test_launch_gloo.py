"""Real process groups on gloo; their faults are in test_fault_matrix.py."""

import pytest

from gpudiag.ranks.agents.launch import TORCH
from tests.ranks.launching import Launches

pytestmark = pytest.mark.ranks


def test_ranks_meet_and_sum(launches: Launches) -> None:
    run = launches.run("all_reduces", world_size=3, preload=TORCH)
    assert run.incidents == ()
    assert dict(run.results) == {rank: {"sum": 6.0} for rank in range(3)}
