"""`gpudiag train` finds what small, short and exact training would hide: faults planted in torch from
outside.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.ranks.planting import train_with

pytestmark = [pytest.mark.ranks, pytest.mark.sliced, pytest.mark.timeout(180)]

# A DDP whose buckets go another way on the rank that is asked: `own(bucket, steps)` says what a rank uses.
HOOK = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
steps = 0
wrap = DDP.__init__
def init(self, *args, **named):
    wrap(self, *args, **named)
    self.register_comm_hook(None, hook)
DDP.__init__ = init
def average(buffer):
    future = dist.all_reduce(buffer.div_(dist.get_world_size()), async_op=True).get_future()
    return future.then(lambda done: done.value()[0])
def hook(state, bucket):
    global steps
    steps += bucket.is_last()
    rank, own = dist.get_rank(), bucket.buffer().clone()
    averaged = average(change(rank, bucket.buffer()))
    return averaged.then(lambda done: own) if alone(rank, bucket, steps) else averaged
def change(rank, buffer):
    return buffer
def alone(rank, bucket, steps):
    return False
"""
SECOND_BUCKET = f"{HOOK}\ndef alone(rank, bucket, steps):\n    return bucket.index() == 1\n"
# Four verified steps, thrice three around the checkpoint and the repeat, three that warm up, four that are
# timed.
LATE = f"{HOOK}\ndef alone(rank, bucket, steps):\n    return rank == 1 and steps > 17\n"
TENTH = f"{HOOK}\ndef change(rank, buffer):\n    return buffer.mul_(1.1 if rank == 1 else 1.0)\n"
CLIPPED = f"{HOOK}\ndef change(rank, buffer):\n    return buffer.mul_(min(1.0, 0.2 / float(buffer.norm())))\n"
DECAY = """
import torch
step = torch.amp.GradScaler.step
def decayed(self, optimizer, *args, **named):
    step(self, optimizer, *args, **named)
    with torch.no_grad():
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.mul_(1 - 5e-6)  # a decay of 1e-4 at a learning rate of 0.05
torch.amp.GradScaler.step = decayed
"""
HALF_BATCHES = """
from torch.utils.data._utils.fetch import _MapDatasetFetcher as Fetcher
fetch = Fetcher.fetch
Fetcher.fetch = lambda self, indices: fetch(self, indices[: len(indices) // 2])
"""
HALF_SAMPLER = """
from torch.utils.data.distributed import DistributedSampler as Sampler
order = Sampler.__iter__
Sampler.__iter__ = lambda self: iter(list(order(self))[: self.num_samples // 2])
"""
TRACKER = """
import torch
kept = torch.amp.GradScaler.state_dict
torch.amp.GradScaler.state_dict = lambda self: {**kept(self), "_growth_tracker": 0}
"""
WITHOUT = """
import torch.distributed.checkpoint.state_dict_loader as loader
load = loader.load
def load_without(state, **named):
    return load({{name: value for name, value in state.items() if name != {part!r}}}, **named)
loader.load = load_without
"""


@pytest.mark.parametrize(
    ("plant", "flags", "code", "words"),
    [
        pytest.param(
            SECOND_BUCKET, ("--workload", "classification"), "train.tensor_not_averaged", "not averaged",
            id="second bucket",
        ),
        pytest.param(HALF_BATCHES, (), "train.samples_left_out", "of 32 samples", id="half of each batch"),
        pytest.param(HALF_SAMPLER, (), "train.samples_left_out", "of 32 samples", id="half of the sampler"),
        pytest.param(
            TRACKER, ("--dtype", "float16"), "train.checkpoint", "loss scale 2 steps later",
            id="growth tracker",
        ),
        pytest.param(
            WITHOUT.format(part="optimizer"), ("--strategy", "fsdp2"), "train.checkpoint", "momentum_buffer",
            id="no optimizer",
        ),
        pytest.param(
            WITHOUT.format(part="model"), ("--strategy", "fsdp2"), "train.checkpoint", "model.",
            id="no model",
        ),
    ],
)  # fmt: skip
def test_what_was_out_of_sight_is_found_and_named(
    tmp_path: Path, plant: str, flags: tuple[str, ...], code: str, words: str
) -> None:
    first = first_of(train_with(plant, tmp_path, *flags))
    assert (first["code"], first["outcome"]) == (code, "fail")
    assert words in first["message"]


def test_a_rank_that_stops_averaging_late_is_named(tmp_path: Path) -> None:
    first = first_of(train_with(LATE, tmp_path))
    assert (first["code"], first["subject"].get("rank")) == ("train.not_averaged", 1)


@pytest.mark.parametrize(
    ("plant", "code"),
    [
        pytest.param(TENTH, "train.ranks_weighed", id="10 % too much of one rank"),
        pytest.param(CLIPPED, "train.ranks_weighed", id="clipped before averaging"),
        pytest.param(DECAY, "train.parameters", id="decay"),
    ],
)
def test_small_faults_in_the_maths_are_found_in_bfloat16(tmp_path: Path, plant: str, code: str) -> None:
    assert first_of(train_with(plant, tmp_path, "--dtype", "bfloat16"))["code"] == code


def first_of(report: Any) -> Any:
    assert report["findings"], report
    return report["findings"][0]
