"""Runs `gpudiag train` as a user does, in a process of its own, and looks for what it leaves."""

import sys

from gpudiag.runs.interpreters import lack_on_cpu
from tests.ranks.nccl_test_command import LIMIT_SECONDS, Completed, run

TRAIN = (sys.executable, "-m", "gpudiag", "train", "--backend", "gloo")
# Those of torch that train on the CPU: FSDP2 with torch 2.9 and later (tools/torches.py runs these tests with
# others).
SHARDS = lack_on_cpu("fsdp2", None) is None
STRATEGIES = ("ddp", "fsdp2") if SHARDS else ("ddp",)
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone")


def train(*flags: str, limit_seconds: float = LIMIT_SECONDS) -> Completed:
    """`gpudiag train --backend gloo` with those flags; on two ranks, where they say nothing of it."""
    ranks = () if {"--nproc", "--advise", "--world-size"} & set(flags) else ("--nproc", "2")
    return run(*TRAIN, *ranks, *flags, limit_seconds=limit_seconds)


def torchrun_train(world_size: int, *flags: str) -> Completed:
    """The same under torchrun, one process per rank."""
    launcher = (*TORCHRUN, "--nproc-per-node", str(world_size))
    return run(*launcher, "-m", "gpudiag", "train", "--backend", "gloo", *flags)
