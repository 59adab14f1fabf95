"""A preflight's strategies: one whose ranks could not be started costs the others nothing."""

from importlib.util import find_spec
from typing import Any

import pytest

from gpudiag.checks.training.strategy import judge_training
from gpudiag.errors import LaunchError
from gpudiag.model.training import TrainingPlan
from gpudiag.ranks.rank_run import RankRun
from gpudiag.runs import train
from gpudiag.runs.placement import Placement
from gpudiag.runs.train import measure_strategies

PLAN = TrainingPlan(strategy=("ddp", "fsdp2"), nproc=2)
HERE = Placement("gloo", 2)

pytestmark = pytest.mark.skipif(
    find_spec("torch") is None, reason="torch is not installed: no strategy is tried"
)


def fail_for(*strategies: str) -> Any:
    """What runs no ranks, and cannot start those of these strategies."""

    def run(plan: Any, facts: Any, job: Any, place: Any, faults: Any) -> RankRun:
        if facts.name in strategies:
            raise LaunchError("cannot start a process for the ranks: Cannot allocate memory")
        return RankRun(2, "spawn", "a1", (), (), injected=(), seconds=1.0)

    return run


def test_one_strategy_that_cannot_start_is_told_and_the_others_are_measured(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(train, "_run", fail_for("ddp"))
    ddp, fsdp2 = measure_strategies(PLAN, HERE)
    assert (ddp.strategy, fsdp2.strategy, fsdp2.incidents) == ("ddp", "fsdp2", ())
    (finding,) = [one for one in judge_training(ddp) if one.code == "rank.shortage"]
    assert "ranks 0 and 1 could not be started: cannot start a process" in finding.message


def test_where_none_can_start_it_is_one_fault(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(train, "_run", fail_for("ddp", "fsdp2"))
    with pytest.raises(LaunchError, match="Cannot allocate memory"):
        measure_strategies(PLAN, HERE)
