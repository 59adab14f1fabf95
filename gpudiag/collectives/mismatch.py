"""The wrong collective that `--inject mismatch` makes a rank enter, instead of the one it should."""

from dataclasses import dataclass

import torch
import torch.distributed as dist

from gpudiag.collectives.buffers import Buffers
from gpudiag.collectives.layouts import LAYOUTS
from gpudiag.collectives.operations import OPERATIONS, Call, reduce_op
from gpudiag.collectives.pattern import torch_dtype
from gpudiag.ranks.inject import MismatchKind


@dataclass(frozen=True, slots=True)
class Announcement:
    """What a rank is about to enter: the same on every rank, if nothing is wrong.

    `elements` is the length of one part of the array: where whole buffers differ by design, between
    the root and the others, it does not. `kind` is the operation to torch where `op` is a name of
    ours for a use of it.
    """

    op: str
    dtype: str
    elements: int
    kind: str = ""


def enter_wrongly(
    mismatch: MismatchKind, right: Announcement, device: torch.device
) -> tuple[Announcement, Call]:
    """What a rank enters that differs in that way from `right`, and the call that does it."""
    kind = right.kind or right.op
    if mismatch is MismatchKind.OP:
        kind = "broadcast" if kind != "broadcast" else "all_reduce"
        wrong = Announcement(kind, right.dtype, max(1, right.elements))
    elif mismatch is MismatchKind.SIZE:
        wrong = Announcement(right.op, right.dtype, right.elements + 1, kind)
    else:
        dtype = "float64" if right.dtype != "float64" else "float32"
        wrong = Announcement(right.op, dtype, max(1, right.elements), kind)
    return wrong, OPERATIONS[kind](_zeros(kind, wrong, device), reduce_op(None))


def _zeros(kind: str, announced: Announcement, device: torch.device) -> Buffers:
    layout = LAYOUTS[kind](dist.get_rank(), dist.get_world_size())
    dtype, elements = torch_dtype(announced.dtype), announced.elements
    send = torch.zeros(len(layout.send) * elements, dtype=dtype, device=device)
    if kind in ("all_reduce", "broadcast", "reduce"):
        return Buffers(send, send, elements)
    receive = torch.zeros(len(layout.receive) * elements, dtype=dtype, device=device)
    return Buffers(send, receive, elements)
