"""The collectives themselves: how torch is asked for each, and the memory that they work on.

Each function takes one pair of buffers and returns the call that runs the operation on them, so
that nothing but the call is timed. torch 2.13 renamed some of them; both names are known here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist

from gpudiag.collectives.cases import Case
from gpudiag.collectives.pattern import Pattern, as_bits, parts_per_buffer, torch_dtype
from gpudiag.model.operation import OPERATIONS, ROOT, Layout

# --- their memory

# Buffers start at cache lines of their own, as an allocator would place them.
_ALIGNMENT_BYTES = 256


@dataclass(frozen=True, slots=True)
class Buffers:
    """One operation's buffers on this rank; in place they overlap, or are the same."""

    send: torch.Tensor
    receive: torch.Tensor
    part_elements: int

    def part(self, first: int, units: int = 1) -> torch.Tensor:
        """So many parts of the receive buffer, from that one on."""
        return self.receive[first * self.part_elements : (first + units) * self.part_elements]

    def cut(self, tensor: torch.Tensor, count: int) -> list[torch.Tensor]:
        """A buffer as the list of its `count` parts, as torch's gather and scatter take it."""
        return [tensor[place * self.part_elements :][: self.part_elements] for place in range(count)]


@dataclass(frozen=True, slots=True)
class _Plan:
    """The layout of a case's buffers: the size of each, and the stride from one pair to the next."""

    layout: Layout
    part_elements: int
    send_elements: int
    receive_elements: int
    send_bytes: int
    stride_bytes: int


class BufferArea:
    """One allocation, divided into buffers for each case in turn."""

    def __init__(
        self,
        cases: Sequence[Case],
        rank: int,
        world_size: int,
        allocate: Callable[[int], torch.Tensor],
        at_least_bytes: int,
    ) -> None:
        """Allocate enough bytes for one pair of buffers of any case, and at least that many."""
        self._rank = rank
        self._world_size = world_size
        largest = max(self._plan(case).stride_bytes for case in cases)
        self._memory = allocate(max(largest, at_least_bytes))

    def carve(self, case: Case, wanted: int) -> list[Buffers]:
        """As many of the wanted pairs of buffers as the area holds; the same number on every rank."""
        plan = self._plan(case)
        count = min(wanted, len(self._memory) // plan.stride_bytes)
        return [self._place(case, plan, place * plan.stride_bytes) for place in range(count)]

    def _plan(self, case: Case) -> _Plan:
        """The layout for the largest buffers of any rank: ranks that differed would fall out of step."""
        send_parts, receive_parts = parts_per_buffer(case.op, self._world_size)
        part_elements = case.part_elements(self._world_size)
        item_bytes = torch_dtype(case.dtype).itemsize
        extra = item_bytes if case.unaligned else 0
        send_bytes = _aligned(send_parts * part_elements * item_bytes + extra)
        receive_bytes = _aligned(receive_parts * part_elements * item_bytes + extra)
        layout = OPERATIONS[case.op].layout(self._rank, self._world_size)
        return _Plan(
            layout=layout,
            part_elements=part_elements,
            send_elements=layout.sent_units * part_elements,
            receive_elements=layout.received_units * part_elements,
            send_bytes=send_bytes,
            stride_bytes=max(send_bytes, receive_bytes) if case.in_place else send_bytes + receive_bytes,
        )

    def _place(self, case: Case, plan: _Plan, start: int) -> Buffers:
        if not case.in_place:
            send = self._view(case, start, plan.send_elements)
            receive = self._view(case, start + plan.send_bytes, plan.receive_elements)
            return Buffers(send, receive, plan.part_elements)
        whole = self._view(case, start, max(plan.send_elements, plan.receive_elements))
        own = slice(self._rank * plan.part_elements, (self._rank + 1) * plan.part_elements)
        send = whole if len(whole) == plan.send_elements else whole[own]
        receive = whole[own] if 0 < plan.receive_elements < len(whole) else whole
        return Buffers(send, receive, plan.part_elements)

    def _view(self, case: Case, start: int, elements: int) -> torch.Tensor:
        dtype = torch_dtype(case.dtype)
        skipped = 1 if case.unaligned else 0
        stretch = self._memory[start : start + (elements + skipped) * dtype.itemsize]
        return stretch.view(dtype)[skipped:]


def fill(buffers: Buffers, layout: Layout, pattern: Pattern, round_number: int) -> None:
    """Put this rank's data of that round into the send buffer, and zeros where data is to arrive."""
    elements = buffers.part_elements
    if buffers.receive.data_ptr() != buffers.send.data_ptr() or len(buffers.receive) > len(buffers.send):
        as_bits(buffers.receive).zero_()  # what is not delivered must not look right
    start = 0
    for block, units in zip(layout.send, layout.lengths, strict=True):
        length = units * elements
        buffers.send[start : start + length].copy_(pattern.block(pattern.rank, block, round_number, length))
        start += length


def _aligned(size_bytes: int) -> int:
    """The size rounded up to the alignment; at least one unit, so that no two buffers coincide."""
    return max(1, -(-size_bytes // _ALIGNMENT_BYTES)) * _ALIGNMENT_BYTES


# --- how torch is asked for each

Call = Callable[[], Any]
ReduceOp = dist.ReduceOp.RedOpType

_REDUCE_OPS = MappingProxyType(
    {
        "sum": dist.ReduceOp.SUM,
        "avg": dist.ReduceOp.AVG,
        "min": dist.ReduceOp.MIN,
        "max": dist.ReduceOp.MAX,
    }
)
_all_gather_single: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter_single: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def reduce_op(name: str | None) -> ReduceOp:
    """Torch's reduction of that name; for None SUM, which operations without a reduction ignore."""
    return _REDUCE_OPS[name or "sum"]


def _all_reduce(buffers: Buffers, reduce: ReduceOp) -> Call:
    return lambda: dist.all_reduce(buffers.receive, op=reduce)


def _all_gather(buffers: Buffers, reduce: ReduceOp) -> Call:
    return lambda: _all_gather_single(buffers.receive, buffers.send)


def _reduce_scatter(buffers: Buffers, reduce: ReduceOp) -> Call:
    return lambda: _reduce_scatter_single(buffers.receive, buffers.send, op=reduce)


def _all_to_all(buffers: Buffers, reduce: ReduceOp) -> Call:
    return lambda: dist.all_to_all_single(buffers.receive, buffers.send)


def _alltoallv(buffers: Buffers, reduce: ReduceOp) -> Call:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    sent = [(other - rank) % world_size * buffers.part_elements for other in range(world_size)]
    received = [(rank - other) % world_size * buffers.part_elements for other in range(world_size)]
    return lambda: dist.all_to_all_single(buffers.receive, buffers.send, received, sent)


def _broadcast(buffers: Buffers, reduce: ReduceOp) -> Call:
    return lambda: dist.broadcast(buffers.receive, ROOT)


def _reduce(buffers: Buffers, reduce: ReduceOp) -> Call:
    return lambda: dist.reduce(buffers.send, ROOT, op=reduce)


def _gather(buffers: Buffers, reduce: ReduceOp) -> Call:
    parts = _parts_at_root(buffers, buffers.receive)
    return lambda: dist.gather(buffers.send, parts, ROOT)


def _scatter(buffers: Buffers, reduce: ReduceOp) -> Call:
    parts = _parts_at_root(buffers, buffers.send)
    return lambda: dist.scatter(buffers.receive, parts, ROOT)


def _send_recv(buffers: Buffers, reduce: ReduceOp) -> Call:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    both = [
        dist.P2POp(dist.isend, buffers.send, (rank + 1) % world_size),
        dist.P2POp(dist.irecv, buffers.receive, (rank - 1) % world_size),
    ]

    def call() -> None:
        for work in dist.batch_isend_irecv(both):
            work.wait()

    return call


def _hypercube(buffers: Buffers, reduce: ReduceOp) -> Call:
    """An all-gather by sends: in each step a rank and another one exchange all that both have got so far."""
    rank, world_size, length = dist.get_rank(), dist.get_world_size(), buffers.part_elements
    own = buffers.part(rank)
    steps: list[list[dist.P2POp]] = []
    width = 1
    while width < world_size:
        other, first = rank ^ width, rank & ~(width - 1)
        sent = buffers.receive[first * length : (first + width) * length]
        got = buffers.receive[(first ^ width) * length : ((first ^ width) + width) * length]
        steps.append([dist.P2POp(dist.isend, sent, other), dist.P2POp(dist.irecv, got, other)])
        width *= 2

    def call() -> None:
        if own.data_ptr() != buffers.send.data_ptr():
            own.copy_(buffers.send)
        for step in steps:
            for work in dist.batch_isend_irecv(step):
                work.wait()

    return call


def _barrier(buffers: Buffers, reduce: ReduceOp) -> Call:
    if buffers.send.device.type == "cuda":
        return lambda: dist.barrier(device_ids=[buffers.send.device.index])
    return dist.barrier


def _parts_at_root(buffers: Buffers, tensor: Any) -> Any:
    return buffers.cut(tensor, dist.get_world_size()) if dist.get_rank() == ROOT else None


CALLS: Mapping[str, Callable[[Buffers, ReduceOp], Call]] = MappingProxyType(
    {
        "all_reduce": _all_reduce,
        "all_gather": _all_gather,
        "reduce_scatter": _reduce_scatter,
        "all_to_all": _all_to_all,
        "alltoallv": _alltoallv,
        "broadcast": _broadcast,
        "reduce": _reduce,
        "gather": _gather,
        "scatter": _scatter,
        "send_recv": _send_recv,
        "hypercube": _hypercube,
        "barrier": _barrier,
    }
)
