"""One rank's process group, in which every collective is announced first."""

import time
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]  # public in torch's documentation
from torch.distributed.rendezvous import rendezvous

from gpudiag.collectives.operations import CALLS, Buffers, Call, reduce_op
from gpudiag.collectives.pattern import torch_dtype
from gpudiag.model.operation import OPERATIONS
from gpudiag.ranks.inject import MismatchKind
from gpudiag.ranks.rank.context import Progress, RankContext
from gpudiag.ranks.rank.device import binds_device, claim_device, refuse_shared_device
from gpudiag.ranks.stages import INIT, RENDEZVOUS

# 16 MiB: some 100 microseconds over NVLink; launching a collective takes the host 20 to 50.
_AHEAD_ELEMENTS = 4 * 1024**2


@dataclass(frozen=True, slots=True)
class Announcement:
    """The collective that a rank is about to enter: the same on every rank, if nothing is wrong.

    `elements` is the length of one part of the array, the same on every rank even where whole buffers
    differ by design, between the root and the others. `kind` is torch's operation where `op` is
    gpudiag's name for a use of it.
    """

    op: str
    dtype: str
    elements: int
    kind: str = ""


def enter_wrongly(
    mismatch: MismatchKind, right: Announcement, device: torch.device
) -> tuple[Announcement, Call]:
    """A collective that differs in that way from `right`, and the call that enters it."""
    kind = right.kind or right.op
    if mismatch is MismatchKind.OP:
        kind = "broadcast" if kind != "broadcast" else "all_reduce"
        wrong = Announcement(kind, right.dtype, max(1, right.elements))
    elif mismatch is MismatchKind.SIZE:
        wrong = Announcement(right.op, right.dtype, right.elements + 1, kind)
    else:
        dtype = "float64" if right.dtype != "float64" else "float32"
        wrong = Announcement(right.op, dtype, max(1, right.elements), kind)
    return wrong, CALLS[kind](_zeros(kind, wrong, device), reduce_op(None))


def _zeros(kind: str, announced: Announcement, device: torch.device) -> Buffers:
    layout = OPERATIONS[kind].layout(dist.get_rank(), dist.get_world_size())
    dtype, elements = torch_dtype(announced.dtype), announced.elements
    send = torch.zeros(layout.sent_units * elements, dtype=dtype, device=device)
    if kind in ("all_reduce", "broadcast", "reduce"):
        return Buffers(send, send, elements)
    receive = torch.zeros(layout.received_units * elements, dtype=dtype, device=device)
    return Buffers(send, receive, elements)


_BARRIER = Announcement("barrier", "float32", 1, kind="all_reduce")


class ProcessGroup:
    """The process group of all ranks, seen from one of them.

    Every collective goes through `run`, so that the side channel knows what the rank is about to
    enter before it does: a rank that hangs can no longer report it.
    """

    def __init__(self, rank: int, world_size: int, device: torch.device, progress: Progress) -> None:
        """Wrap torch's default process group, which must be open."""
        self.rank = rank
        self.world_size = world_size
        self.device = device
        self.progress = progress
        self._sequence = 0
        self._ahead: torch.Tensor | None = None
        self._queued: Announcement | None = None  # the last collective that was queued
        self._queued_seconds = 0.0  # predicted for all that is queued, as far as known

    def run(
        self,
        call: Call,
        right: Announcement,
        predicted_seconds: float | None = None,
        *,
        before: Call | None = None,
        after: Call | None = None,
    ) -> None:
        """Run one collective; on a GPU, return once it is queued.

        `predicted_seconds` is how long it should take once every rank is there. `before` and `after`
        are called with nothing between them but the collective.
        """
        sequence = self._sequence
        self._sequence += 1
        mismatch = self.progress.pop_mismatch()
        if mismatch is not None:
            right, call = enter_wrongly(mismatch, right, self.device)
        self.progress.before_operation(sequence, right.op, right.dtype, right.elements, predicted_seconds)
        if before is not None:
            before()
        call()
        if after is not None:
            after()
        queued = self.device.type == "cuda"
        if queued:
            self._queued = right
            self._queued_seconds += predicted_seconds or 0.0
        self.progress.after_operation(sequence, queued=queued)

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

    def queue_ahead(self) -> None:
        """Queue an untimed collective, and do not wait for it.

        What follows it on a GPU's stream is launched by then, and starts on all ranks together: else the time
        of a single operation would include its launch and the ranks' skew after a barrier.
        """
        if self._ahead is None:
            self._ahead = torch.zeros(_AHEAD_ELEMENTS, device=self.device)
        ahead = self._ahead
        self.run(lambda: dist.all_reduce(ahead), Announcement("all_reduce", "float32", _AHEAD_ELEMENTS))

    def broadcast_integers(self, values: list[int]) -> list[int]:
        """Rank 0's integers, on every rank, for what all must decide alike."""
        tensor = torch.tensor(values, dtype=torch.int64, device=self.device)
        self.run(lambda: dist.broadcast(tensor, 0), Announcement("broadcast", "int64", len(values)))
        self.synchronize()  # announced, unlike the wait in `tolist`
        return [int(value) for value in tensor.tolist()]

    def synchronize(self) -> None:
        """Return once the GPU has done all that was queued; on CPU there is no queue.

        It is announced like a collective, with the last queued one and the predicted time of all that are
        queued: a collective that hangs on a GPU hangs here.
        """
        if self.device.type == "cuda":
            sequence = self._sequence
            self._sequence += 1
            queued, seconds = self._queued, self._queued_seconds
            self._queued, self._queued_seconds = None, 0.0
            awaited = ("synchronize", "", 0) if queued is None else _name_end_of(queued)
            self.progress.before_operation(sequence, *awaited, seconds or None)
            torch.cuda.synchronize(self.device)
            self.progress.after_operation(sequence)


def _name_end_of(queued: Announcement) -> tuple[str, str, int]:
    """The operation, dtype and elements to announce for a wait for the end of that collective."""
    return f"end of {queued.op}", queued.dtype, queued.elements


def meet(context: RankContext, backend: str) -> tuple[Store, torch.device]:
    """The store that all ranks of the run share, once this one is there, and the device of this rank."""
    context.progress.enter_stage(RENDEZVOUS)
    device = claim_device(context, backend)
    meeting = rendezvous(
        context.init_method,
        context.rank,
        context.world_size,
        timeout=timedelta(seconds=context.rendezvous_timeout_seconds),
    )
    store, _, _ = next(iter(meeting))
    context.progress.enter_stage(INIT)
    refuse_shared_device(context, store, device)
    return store, device


def join_process_group(context: RankContext, backend: str) -> ProcessGroup:
    """The open process group of this run, after a first barrier that builds the connections."""
    store, device = meet(context, backend)
    dist.init_process_group(
        backend,
        store=store,
        rank=context.rank,
        world_size=context.world_size,
        timeout=timedelta(seconds=context.operation_timeout_seconds),
        device_id=device if binds_device(device) else None,
    )
    group = ProcessGroup(context.rank, context.world_size, device, context.progress)
    group.barrier()
    return group
