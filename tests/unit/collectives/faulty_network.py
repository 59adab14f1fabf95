"""Collectives in memory, without processes: what every rank would hold, with faults on the way."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from gpudiag.collectives.pattern import Pattern
from gpudiag.model.operation import OPERATIONS, Block

CPU = torch.device("cpu")

# What becomes of one rank's data on its way: (source, block, round) -> the data that arrives.
Fault = Callable[["Network", int, int, int], torch.Tensor]


@dataclass
class Network:
    """All ranks of one operation, dtype and reduction, and the faults on the way of some of their data."""

    op: str
    dtype: str
    reduce: str | None
    world_size: int
    elements: int
    faults: dict[int, Fault] = field(default_factory=dict)
    patterns: list[Pattern] = field(init=False)

    def __post_init__(self) -> None:
        self.patterns = [
            Pattern(self.dtype, self.reduce, rank, self.world_size, self.elements, CPU)
            for rank in range(self.world_size)
        ]

    def sent(self, source: int, block: int, round_number: int) -> torch.Tensor:
        """What a rank really sends."""
        return self.patterns[source].block(source, block, round_number, self.elements)

    def arriving(self, source: int, block: int, round_number: int) -> torch.Tensor:
        """What arrives of it."""
        fault = self.faults.get(source)
        return (
            self.sent(source, block, round_number)
            if fault is None
            else fault(self, source, block, round_number)
        )

    def receive(self, rank: int, round_number: int) -> list[tuple[Block, torch.Tensor]]:
        """Every part of a rank's result, with what it should have been."""
        layout = OPERATIONS[self.op].layout(rank, self.world_size)
        return [(block, self._part(block, round_number)) for block in layout.receive]

    def _part(self, block: Block, round_number: int) -> torch.Tensor:
        if block.source is not None:
            return self.arriving(block.source, block.block, round_number).clone()
        parts = [self.arriving(source, block.block, round_number) for source in range(self.world_size)]
        return self.reduced(parts)

    def reduced(self, parts: list[torch.Tensor]) -> torch.Tensor:
        """The reduction of these parts, in the dtype itself, one after the other."""
        result = parts[0].clone()
        for part in parts[1:]:
            if self.reduce in ("min", "max"):
                result = torch.minimum(result, part) if self.reduce == "min" else torch.maximum(result, part)
            else:
                result = result + part
        return result / self.world_size if self.reduce == "avg" else result


class SummingNetwork(Network):
    """A library that adds up whatever reduction it is asked for, as gloo's reduce_scatter up to torch 2.8."""

    def reduced(self, parts: list[torch.Tensor]) -> torch.Tensor:
        """The sum of these parts, in the dtype itself, one after the other."""
        return Network("all_reduce", self.dtype, "sum", self.world_size, self.elements).reduced(parts)


def dropped(network: Network, source: int, block: int, round_number: int) -> torch.Tensor:
    """Nothing arrives: a sum misses it, an extreme does not see it, a copy stays zero."""
    if network.reduce in ("min", "max"):
        other = (source + 1) % network.world_size
        return network.sent(other, block, round_number)
    return torch.zeros(network.elements, dtype=network.patterns[0].dtype)


def duplicated(network: Network, source: int, block: int, round_number: int) -> torch.Tensor:
    """The data is counted twice."""
    part = network.sent(source, block, round_number)
    return part + part


def replaced(network: Network, source: int, block: int, round_number: int) -> torch.Tensor:
    """The next rank's data arrives instead."""
    return network.sent((source + 1) % network.world_size, block, round_number)


def stale(network: Network, source: int, block: int, round_number: int) -> torch.Tensor:
    """The data of the round before arrives."""
    return network.sent(source, block, round_number - 1)


def misplaced(network: Network, source: int, block: int, round_number: int) -> torch.Tensor:
    """The data of the next block arrives."""
    return network.sent(source, (block + 1) % network.world_size, round_number)


def shifted(distance: int) -> Fault:
    """The data arrives that many elements too late."""

    def fault(network: Network, source: int, block: int, round_number: int) -> torch.Tensor:
        pattern = network.patterns[source]
        start = pattern.position(block, round_number) - distance
        return pattern.look_up(source, torch.arange(start, start + network.elements))

    return fault
