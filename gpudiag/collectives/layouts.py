"""Which data each rank sends and must hold afterwards, operation by operation.

A rank's data comes in blocks, numbered from 0. An operation that cuts its array into n parts sends
block d to rank d; the others know only block 0.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

ROOT = 0


@dataclass(frozen=True, slots=True)
class Block:
    """One part of a result: that block of `source`, or reduced over all ranks where it is None."""

    source: int | None
    block: int


@dataclass(frozen=True, slots=True)
class Layout:
    """One rank's part: the blocks in its send buffer, and what its receive buffer must hold.

    Both in the order in which they lie there, all of the same length. An empty `receive` means that
    this rank gets nothing that could be verified.
    """

    send: tuple[int, ...]
    receive: tuple[Block, ...]


def _everywhere(rank: int, world_size: int) -> Layout:
    return Layout((0,), (Block(None, 0),))


def _reduce(rank: int, world_size: int) -> Layout:
    return Layout((0,), (Block(None, 0),) if rank == ROOT else ())


def _broadcast(rank: int, world_size: int) -> Layout:
    return Layout((0,), (Block(ROOT, 0),))


def _all_gather(rank: int, world_size: int) -> Layout:
    return Layout((0,), tuple(Block(source, 0) for source in range(world_size)))


def _reduce_scatter(rank: int, world_size: int) -> Layout:
    return Layout(tuple(range(world_size)), (Block(None, rank),))


def _all_to_all(rank: int, world_size: int) -> Layout:
    return Layout(tuple(range(world_size)), tuple(Block(source, rank) for source in range(world_size)))


def _gather(rank: int, world_size: int) -> Layout:
    return _all_gather(rank, world_size) if rank == ROOT else Layout((0,), ())


def _scatter(rank: int, world_size: int) -> Layout:
    return Layout(tuple(range(world_size)) if rank == ROOT else (), (Block(ROOT, rank),))


def _send_recv(rank: int, world_size: int) -> Layout:
    return Layout((0,), (Block((rank - 1) % world_size, 0),))


def _barrier(rank: int, world_size: int) -> Layout:
    return Layout((), ())


LAYOUTS: Mapping[str, Callable[[int, int], Layout]] = MappingProxyType(
    {
        "all_reduce": _everywhere,
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


def parts_per_buffer(op: str, world_size: int) -> tuple[int, int]:
    """How many parts the largest send and the largest receive buffer of any rank hold."""
    layouts = [LAYOUTS[op](rank, world_size) for rank in {ROOT, world_size - 1}]
    return max(len(layout.send) for layout in layouts), max(len(layout.receive) for layout in layouts)
