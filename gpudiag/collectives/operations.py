"""The collectives themselves: how torch is asked for each.

Each function takes one pair of buffers and returns the call that runs the operation on them, so
that nothing but the call is timed. torch 2.13 renamed some of them; both names are known here.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch.distributed as dist

from gpudiag.collectives.buffers import Buffers
from gpudiag.model.operation import ROOT

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
        "broadcast": _broadcast,
        "reduce": _reduce,
        "gather": _gather,
        "scatter": _scatter,
        "send_recv": _send_recv,
        "barrier": _barrier,
    }
)
