"""Keep the ranks in step: all take the same steps in the same order, each announced before it starts.

So a rank that hangs in a step can be told from those that wait for it. The process group is gloo's, on
CPU tensors, whatever the ranks work on: it carries nothing but barriers.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

from gpudiag.ranks.rank.context import Progress, RankContext
from gpudiag.ranks.stages import INIT, RENDEZVOUS

_T = TypeVar("_T")


class LockStep:
    """One rank's place among the ranks, in an open process group."""

    def __init__(self, context: RankContext) -> None:
        """Join the other ranks, and return when all are there."""
        self.rank = context.rank
        self.world_size = context.world_size
        self.progress: Progress = context.progress
        self._sequence = 0
        self._token = torch.zeros(1)
        self.progress.enter_stage(RENDEZVOUS)
        self.progress.enter_stage(INIT)
        dist.init_process_group(
            "gloo",
            init_method=context.init_method,
            rank=context.rank,
            world_size=context.world_size,
            timeout=timedelta(seconds=context.operation_timeout_seconds),
        )
        self.barrier()

    def step(self, name: str, call: Callable[[], _T], elements: int = 0) -> _T:
        """What `call` returns, announced as `name` before it starts; without elements, this rank's work."""
        sequence = self._sequence
        self._sequence += 1
        self.progress.before_operation(sequence, name, "", elements)
        result = call()
        self.progress.after_operation(sequence)
        return result

    def barrier(self) -> None:
        """Return once every rank is here."""
        self.step("barrier", lambda: dist.all_reduce(self._token), self._token.numel())
