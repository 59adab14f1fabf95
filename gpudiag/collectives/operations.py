"""The collectives themselves: how torch is asked for each, on which buffers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
import torch.distributed as dist

_REDUCE_OPS = MappingProxyType({"sum": dist.ReduceOp.SUM})


@dataclass(frozen=True, slots=True)
class Operation:
    """One collective: `call(buffer, reduce)` runs it on this rank's buffer, in place."""

    name: str
    call: Callable[[torch.Tensor, dist.ReduceOp.RedOpType], None]


def _all_reduce(buffer: torch.Tensor, reduce: dist.ReduceOp.RedOpType) -> None:
    dist.all_reduce(buffer, op=reduce)


OPERATIONS: Mapping[str, Operation] = MappingProxyType(
    {operation.name: operation for operation in (Operation("all_reduce", _all_reduce),)}
)


def reduce_op(name: str) -> dist.ReduceOp.RedOpType:
    """Torch's reduction of that name."""
    return _REDUCE_OPS[name]
