"""What a rank contributes and what it must hold afterwards, as tensors, for every round of a sweep.

A rank's data is one long sequence: the table entry at h(position) + rank. Block b of round k starts
a little later in it than block 0 of round 0, so that a new round costs a copy and nothing is
computed between timed operations. A result left over from an earlier round, a block in the wrong
place, or data that landed at another offset therefore differs from what is expected.
"""

from collections.abc import Sequence
from functools import lru_cache

import torch

from gpudiag.collectives.tables import bit_patterns, reduction_table
from gpudiag.model.operation import OPERATIONS, ROOT, Block

# h repeats after this prime number of elements, each time with the table rotated a step further.
TILE_ELEMENTS = 131_071
_TILE_ROTATION = 7
ROUNDS = 31
BLOCK_STRIDE_ELEMENTS = 37
_ROUND_EXTRA_ELEMENTS = 211
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def parts_per_buffer(op: str, world_size: int) -> tuple[int, int]:
    """How many parts the largest send and the largest receive buffer of any rank hold."""
    layouts = [OPERATIONS[op].layout(rank, world_size) for rank in {ROOT, world_size - 1}]
    return max(len(layout.send) for layout in layouts), max(len(layout.receive) for layout in layouts)


def as_bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory seen as integers: `==` on floats would take -0.0 for 0.0 and miss the sign bit."""
    return tensor.view(_BITS[tensor.element_size()])


def torch_dtype(name: str) -> torch.dtype:
    """Torch's dtype of that name."""
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"torch.{name} is not a dtype")
    return dtype


class Pattern:
    """The data of one operation, dtype and reduction, as one rank needs it.

    `reduce` is None for an operation that only moves data. Sequences are built on first use: the rank's
    own, those of the ranks that it gets data from, or the reduced one.
    """

    def __init__(
        self,
        dtype: str,
        reduce: str | None,
        rank: int,
        world_size: int,
        part_elements: int,
        device: torch.device,
    ) -> None:
        """Prepare for parts of up to `part_elements` elements."""
        self.rank = rank
        self.world_size = world_size
        self.device = device
        self._round_stride = world_size * BLOCK_STRIDE_ELEMENTS + _ROUND_EXTRA_ELEMENTS
        last_block = (world_size - 1) * BLOCK_STRIDE_ELEMENTS
        self._length = part_elements + (ROUNDS - 1) * self._round_stride + last_block
        self._sequences: dict[int | None, torch.Tensor] = {}
        self.dtype = torch_dtype(dtype)
        if reduce is None:
            bits = torch.tensor(bit_patterns(dtype, world_size), dtype=torch.int64)
            self._values = self._reduced = bits.to(_BITS[self.dtype.itemsize]).to(device)
        else:
            table = reduction_table(reduce, dtype, world_size)
            self._values = as_bits(_numbers(table.values, self.dtype)).to(device)
            self._reduced = as_bits(_numbers(table.reduced, self.dtype)).to(device)
        self._tile = make_tile(TILE_ELEMENTS, len(self._values), device)

    def prepare(self, op: str) -> None:
        """Build all sequences that this rank needs for `op` now, not between timed operations."""
        layout = OPERATIONS[op].layout(self.rank, self.world_size)
        wanted = {block.source for block in layout.receive} | ({self.rank} if layout.send else set())
        for source in wanted:
            self._sequence(source)

    def block(self, source: int | None, block: int, round_number: int, elements: int) -> torch.Tensor:
        """That block of `source` in that round; if `source` is None, of the reduction over all ranks."""
        start = self.position(block, round_number)
        return self._sequence(source)[start : start + elements]

    def expected(self, block: Block, round_number: int, elements: int) -> torch.Tensor:
        """The data that a part of a result must hold in that round."""
        return self.block(block.source, block.block, round_number, elements)

    def position(self, block: int, round_number: int) -> int:
        """The position where that block of that round starts in every sequence."""
        return (round_number % ROUNDS) * self._round_stride + block * BLOCK_STRIDE_ELEMENTS

    def displacement(self, elements: int) -> tuple[int, int]:
        """Whole rounds and whole blocks in a distance between positions; (0, 0) if it is neither."""
        rounds, rest = divmod(abs(elements), self._round_stride)
        sign = 1 if elements > 0 else -1
        if rounds and rest == 0:
            return sign * rounds, 0
        blocks, rest = divmod(abs(elements), BLOCK_STRIDE_ELEMENTS)
        return (0, sign * blocks) if blocks and rest == 0 and blocks < self.world_size else (0, 0)

    def look_up(self, source: int | None, positions: torch.Tensor) -> torch.Tensor:
        """The entries of a sequence at any positions from 0 up, computed without the sequence."""
        tile = self._tile[positions % TILE_ELEMENTS]
        steps = tile + positions // TILE_ELEMENTS * _TILE_ROTATION + (source or 0)
        bits = self._reduced if source is None else self._values
        return bits[steps % len(bits)].view(self.dtype)

    def _sequence(self, source: int | None) -> torch.Tensor:
        if source not in self._sequences:
            bits = self._reduced if source is None else self._values.roll(-source)
            self._sequences[source] = _spread(bits, self._tile, self._length).view(self.dtype)
        return self._sequences[source]


def _numbers(values: Sequence[int] | Sequence[float], dtype: torch.dtype) -> torch.Tensor:
    """The values in that dtype; exact, or rounded once where an average is not exact."""
    wide = torch.float64 if any(isinstance(value, float) for value in values) else torch.int64
    numbers = torch.tensor(values, dtype=wide)
    if dtype.itemsize == 1 and dtype.is_floating_point:
        numbers = numbers.to(torch.float32)  # torch converts only floats to 8-bit floats
    return numbers.to(dtype)


def _spread(bits: torch.Tensor, tile: torch.Tensor, length: int) -> torch.Tensor:
    """`bits` looked up at h(0), h(1), ... for `length` elements."""
    spread = torch.empty(length, dtype=bits.dtype, device=bits.device)
    for index, start in enumerate(range(0, length, TILE_ELEMENTS)):
        piece = spread[start : start + TILE_ELEMENTS]
        torch.index_select(bits.roll(-index * _TILE_ROTATION), 0, tile[: len(piece)], out=piece)
    return spread


@lru_cache(maxsize=8)
def make_tile(elements: int, period: int, device: torch.device) -> torch.Tensor:
    """h(i) for the first elements, read-only: i scrambled by MurmurHash3's finaliser, scaled to [0, period).

    Source: fmix32 of https://github.com/aappleby/smhasher (public domain), in 64-bit arithmetic.
    """
    mixed = torch.arange(1, elements + 1, dtype=torch.int64, device=device)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        mixed ^= mixed >> shift
        mixed = (mixed * factor) & 0xFFFFFFFF
    return (mixed * period) >> 32
