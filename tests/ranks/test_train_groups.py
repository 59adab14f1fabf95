"""How often the ranks of a training open a process group: each costs NCCL 2.3 to 3.8 s on 8 ranks."""

import dataclasses
from typing import Any

import pytest

from gpudiag.model.codec import encode
from gpudiag.ranks.agents.launch import TORCH
from gpudiag.ranks.rank.context import RankContext
from gpudiag.training.training_job import TrainingJob
from tests.ranks.launching import Launches

pytestmark = [pytest.mark.ranks, pytest.mark.sliced]

JOB = TrainingJob("ddp", "regression", "gloo", "float32", "sgd", steps=4, batch_size=8, seed=1, workers=2)


def trained(context: RankContext) -> dict[str, Any]:
    """A training, and how many process groups it opened."""
    import torch.distributed as dist

    from gpudiag.training.rank_main import run

    opened, open_group = [], dist.init_process_group

    def counted(*arguments: Any, **named: Any) -> None:
        opened.append(1)
        open_group(*arguments, **named)

    dist.init_process_group = counted
    run(dataclasses.replace(context, arguments=context.arguments["job"]))
    return {"groups": len(opened)}


@pytest.mark.parametrize(("fresh", "groups"), [(False, 1), (True, 3)])
def test_level_quick_opens_one_and_proves_as_much_of_the_maths(
    launches: Launches, fresh: bool, groups: int
) -> None:
    job = dataclasses.replace(JOB, fresh_groups=fresh)
    arguments = {"job": encode(job)}
    run = launches.run(f"{__name__}:trained", world_size=2, arguments=arguments, preload=TORCH)
    assert run.incidents == ()
    assert {rank: result["groups"] for rank, result in run.results.items()} == {0: groups, 1: groups}
    proofs = [event.data for event in run.events if event.data["kind"] == "proof"]
    assert [(proof["checkpoint_identical"], proof["repeat_identical"]) for proof in proofs] == [
        (True, True)
    ] * 2
