"""One rank's way to the others: it joins the process group and announces every collective first."""

import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from gpudiag.collectives.mismatch import Announcement, enter_wrongly
from gpudiag.collectives.operations import Call
from gpudiag.ranks.context import Progress, RankContext
from gpudiag.ranks.stages import INIT, RENDEZVOUS

_BARRIER = Announcement("barrier", "float32", 1, kind="all_reduce")


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
        self,
        call: Call,
        right: Announcement,
        predicted_seconds: float | None = None,
        *,
        before: Call | None = None,
        after: Call | None = None,
    ) -> None:
        """Enter one collective and come back from it (on a GPU: when it is queued).

        `predicted_seconds` is how long it should take once every rank is there. `before` and `after`
        are called with nothing between them but the collective.
        """
        sequence = self._sequence
        self._sequence += 1
        mismatch = self.progress.take_mismatch()
        if mismatch is not None:
            right, call = enter_wrongly(mismatch, right, self.device)
        self.progress.before_operation(sequence, right.op, right.dtype, right.elements, predicted_seconds)
        if before is not None:
            before()
        call()
        if after is not None:
            after()
        self.progress.after_operation(sequence)

    def measure_seconds(self, call: Call, announcement: Announcement) -> float:
        """Seconds that one collective took on this rank, from entering it to its result."""
        self.synchronize()
        before = time.perf_counter()
        self.run(call, announcement)
        self.synchronize()
        return time.perf_counter() - before

    def barrier(self) -> None:
        """Return once every rank is here: the sum of one element over all of them."""
        token = torch.zeros(1, device=self.device)
        self.run(lambda: dist.all_reduce(token), _BARRIER)
        self.synchronize()

    def broadcast_integers(self, values: list[int]) -> list[int]:
        """Rank 0's integers, on every rank: what all of them must decide alike."""
        tensor = torch.tensor(values, dtype=torch.int64, device=self.device)
        self.run(lambda: dist.broadcast(tensor, 0), Announcement("broadcast", "int64", len(values)))
        return [int(value) for value in tensor.tolist()]

    def synchronize(self) -> None:
        """Return once the GPU has done all that was queued; on CPU there is no queue.

        It is announced as the collectives are: a collective that hangs on a GPU hangs here.
        """
        if self.device.type == "cuda":
            sequence = self._sequence
            self._sequence += 1
            self.progress.before_operation(sequence, "synchronize", "uint8", 0)
            torch.cuda.synchronize(self.device)
            self.progress.after_operation(sequence)


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
    # More ranks than GPUs share them, where the recipe allowed that; NCCL says so where it does not.
    device = torch.device("cuda", context.local_rank % max(1, torch.cuda.device_count()))
    torch.cuda.set_device(device)
    return device


def _binds_device(device: torch.device) -> bool:
    """Whether to tell torch the device: 2.6.1 to 2.7.0 hang with it (pytorch/pytorch #153960)."""
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:3] if part.isdecimal())
    return device.type == "cuda" and not (2, 6, 0) < version < (2, 7, 1)
