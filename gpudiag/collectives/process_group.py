"""One rank's way to the others: it joins the process group and announces every collective first."""

import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from gpudiag.ranks.context import Progress, RankContext
from gpudiag.ranks.stages import INIT, RENDEZVOUS


class ProcessGroup:
    """The process group of all ranks, seen from one of them.

    Every collective goes through `run`, so that the side channel knows what the rank is about to
    enter before it does: a rank that hangs cannot say it any more.
    """

    def __init__(self, rank: int, world_size: int, device: torch.device, progress: Progress) -> None:
        """Wrap torch's default process group, which is open."""
        self.rank = rank
        self.world_size = world_size
        self.device = device
        self.progress = progress
        self._sequence = 0

    def run(
        self, call: Callable[[], None], op: str, tensor: torch.Tensor, predicted_seconds: float | None = None
    ) -> None:
        """Enter one collective and come back from it (on a GPU: when it is queued).

        `predicted_seconds` is how long it should take once every rank is there.
        """
        sequence = self._sequence
        self._sequence += 1
        dtype = str(tensor.dtype).removeprefix("torch.")
        self.progress.before_operation(sequence, op, dtype, tensor.numel(), predicted_seconds)
        call()
        self.progress.after_operation(sequence)

    def measure_seconds(self, call: Callable[[], None], op: str, tensor: torch.Tensor) -> float:
        """Seconds that one collective took on this rank, from entering it to its result."""
        self.synchronize()
        before = time.perf_counter()
        self.run(call, op, tensor)
        self.synchronize()
        return time.perf_counter() - before

    def barrier(self) -> None:
        """Return once every rank is here: the sum of one element over all of them."""
        token = torch.zeros(1, device=self.device)
        self.run(lambda: dist.all_reduce(token), "barrier", token)
        self.synchronize()

    def broadcast_integers(self, values: list[int]) -> list[int]:
        """Rank 0's integers, on every rank: what all of them must decide alike."""
        tensor = torch.tensor(values, dtype=torch.int64, device=self.device)
        self.run(lambda: dist.broadcast(tensor, 0), "broadcast", tensor)
        return [int(value) for value in tensor.tolist()]

    def synchronize(self) -> None:
        """Return once the GPU has done all that was queued; on CPU there is no queue."""
        if self.device.type == "cuda":
            token = torch.empty(0, device=self.device)
            self.run(lambda: torch.cuda.synchronize(self.device), "synchronize", token)


def join_process_group(context: RankContext, backend: str) -> ProcessGroup:
    """The open process group of this run, after a first barrier that builds the connections."""
    context.progress.enter_stage(RENDEZVOUS)
    device = _claim_device(context, backend)
    meeting = rendezvous(
        context.init_method,
        context.rank,
        context.world_size,
        timeout=timedelta(seconds=context.rendezvous_timeout_seconds),
    )
    store, rank, world_size = next(iter(meeting))
    context.progress.enter_stage(INIT)
    dist.init_process_group(
        backend,
        store=store,
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=context.operation_timeout_seconds),
        device_id=device if _binds_device(device) else None,
    )
    group = ProcessGroup(rank, world_size, device, context.progress)
    group.barrier()
    return group


def _claim_device(context: RankContext, backend: str) -> torch.device:
    """The device that this rank works on; on a GPU it becomes the current one, as NCCL wants it."""
    if backend != "nccl":
        return torch.device("cpu")
    device = torch.device("cuda", context.local_rank)
    torch.cuda.set_device(device)
    return device


def _binds_device(device: torch.device) -> bool:
    """Whether to tell torch the device: 2.6.1 to 2.7.0 hang with it (pytorch/pytorch #153960)."""
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:3] if part.isdecimal())
    return device.type == "cuda" and not (2, 6, 0) < version < (2, 7, 1)
