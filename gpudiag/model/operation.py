"""The collectives: how nccl-tests counts each, and which data each rank sends and must hold afterwards.

Source: doc/PERFORMANCE.md and src/*.cu of https://github.com/NVIDIA/nccl-tests (read 2026-11).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

ROOT = 0
BARRIER = "barrier"


@dataclass(frozen=True, slots=True)
class Block:
    """One part of a result: that block of `source`, or reduced over all ranks where it is None.

    `units`: its length, where the blocks of an operation differ in that.
    """

    source: int | None
    block: int
    units: int = 1


@dataclass(frozen=True, slots=True)
class Layout:
    """One rank's part: the blocks in its send buffer, and what its receive buffer must hold.

    Both in the order in which they lie there, all of the same length but where `send_units` has that of each
    block. An empty `receive` means that this rank gets nothing that could be verified.
    """

    send: tuple[int, ...]
    receive: tuple[Block, ...]
    send_units: tuple[int, ...] = ()

    @property
    def lengths(self) -> tuple[int, ...]:
        """The units of each block that is sent."""
        return self.send_units or (1,) * len(self.send)

    @property
    def sent_units(self) -> int:
        """The units of the send buffer."""
        return sum(self.lengths)

    @property
    def received_units(self) -> int:
        """The units of the receive buffer."""
        return sum(block.units for block in self.receive)

    @property
    def longest(self) -> int:
        """The units of the longest block that is sent or received; 1 where there is none."""
        return max((*self.lengths, *(block.units for block in self.receive)), default=1)


@dataclass(frozen=True, slots=True)
class Operation:
    """One collective, as nccl-tests counts it, and the layout of each rank.

    `layout` is of a rank and the world size. `whole_array`: the size is that of the array over all ranks;
    `reduces`: it takes a reduction; `in_place`: which placements torch offers, out of place (False) before in
    place (True), as nccl-tests runs them; `least_ranks`: with fewer there is nobody to exchange data with;
    `power_of_two`: only so many ranks can run it. `units` are the equal units that the array of a rank is cut
    into, of a world size. algbw is the size by the time, times `alg_factor`.
    """

    layout: Callable[[int, int], Layout]
    bus_factor: Callable[[int], float]
    whole_array: bool = False
    reduces: bool = False
    placements: tuple[bool, ...] = (True,)
    least_ranks: int = 1
    power_of_two: bool = False
    units: Callable[[int], int] | None = None
    alg_factor: Callable[[int], float] | None = None

    def runs_on(self, world_size: int) -> bool:
        """Whether so many ranks can run it."""
        return world_size >= self.least_ranks and not (self.power_of_two and world_size & (world_size - 1))


def _twice_the_others(world_size: int) -> float:
    return 2 * (world_size - 1) / world_size


def _the_others(world_size: int) -> float:
    return (world_size - 1) / world_size


def _one(world_size: int) -> float:
    return 1.0


def _all_reduce(rank: int, world_size: int) -> Layout:
    return Layout((0,), (Block(None, 0),))


def _all_gather(rank: int, world_size: int) -> Layout:
    return Layout((0,), tuple(Block(source, 0) for source in range(world_size)))


def _reduce_scatter(rank: int, world_size: int) -> Layout:
    return Layout(tuple(range(world_size)), (Block(None, rank),))


def _all_to_all(rank: int, world_size: int) -> Layout:
    return Layout(tuple(range(world_size)), tuple(Block(source, rank) for source in range(world_size)))


def _farther_more(world_size: int) -> int:
    """A unit for the next rank, two for the one after that, and so on."""
    return world_size * (world_size - 1) // 2


def _alltoallv(rank: int, world_size: int) -> Layout:
    """More for ranks that are farther away, as alltoallv_perf does it by default.

    Each sends and gets as much as any other.
    """
    others = [other for other in range(world_size) if other != rank]
    return Layout(
        tuple(others),
        tuple(Block(source, rank, (rank - source) % world_size) for source in others),
        tuple((other - rank) % world_size for other in others),
    )


def _broadcast(rank: int, world_size: int) -> Layout:
    return Layout((0,), (Block(ROOT, 0),))


def _reduce(rank: int, world_size: int) -> Layout:
    return Layout((0,), (Block(None, 0),) if rank == ROOT else ())


def _gather(rank: int, world_size: int) -> Layout:
    return _all_gather(rank, world_size) if rank == ROOT else Layout((0,), ())


def _scatter(rank: int, world_size: int) -> Layout:
    return Layout(tuple(range(world_size)) if rank == ROOT else (), (Block(ROOT, rank),))


def _send_recv(rank: int, world_size: int) -> Layout:
    return Layout((0,), (Block((rank - 1) % world_size, 0),))


def _barrier(rank: int, world_size: int) -> Layout:
    return Layout((), ())


# By name, in the order of `--op all`.
OPERATIONS: Mapping[str, Operation] = MappingProxyType(
    {
        "all_reduce": Operation(_all_reduce, _twice_the_others, reduces=True),
        "all_gather": Operation(_all_gather, _the_others, whole_array=True, placements=(False, True)),
        "reduce_scatter": Operation(
            _reduce_scatter, _the_others, whole_array=True, reduces=True, placements=(False, True)
        ),
        "all_to_all": Operation(_all_to_all, _the_others, whole_array=True, placements=(False,)),
        "alltoallv": Operation(
            _alltoallv,
            _the_others,
            whole_array=True,
            placements=(False,),
            least_ranks=2,
            units=_farther_more,
        ),
        "broadcast": Operation(_broadcast, _one),
        "reduce": Operation(_reduce, _one, reduces=True),
        "gather": Operation(_gather, _the_others, whole_array=True, placements=(False,)),
        "scatter": Operation(_scatter, _the_others, whole_array=True, placements=(False,)),
        "send_recv": Operation(_send_recv, _one, placements=(False,), least_ranks=2),
        "hypercube": Operation(
            _all_gather,
            _one,
            whole_array=True,
            placements=(False, True),
            least_ranks=2,
            power_of_two=True,
            alg_factor=_the_others,
        ),
        BARRIER: Operation(_barrier, _one),
    }
)
