"""What a rank contributes and what it must hold afterwards, as tensors, for every round of a sweep.

The element at offset i of round k is the table entry at h(i + k x stride) + rank: rounds are views
that start a little later in one and the same tensor, so that a new round costs a copy and nothing
is computed between timed operations. A result left over from an earlier round, or one that landed
at another offset, therefore differs from what is expected.
"""

from dataclasses import dataclass

import torch

from gpudiag.collectives.tables import sum_table

# h repeats after this prime number of elements, each time with the table rotated a step further.
_TILE_ELEMENTS = 131_071
_TILE_ROTATION = 7

_ROUNDS = 61
_ROUND_STRIDE_ELEMENTS = 1009

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def as_bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory seen as integers: `==` on floats would take -0.0 for 0.0 and miss the sign bit."""
    return tensor.view(_BITS[tensor.element_size()])


@dataclass(frozen=True, slots=True)
class Pattern:
    """One rank's contribution to a reduction over all ranks, and the exact result, by round."""

    contributed: torch.Tensor
    expected: torch.Tensor

    def contribution(self, round_number: int, elements: int) -> torch.Tensor:
        """What this rank contributes in that round."""
        return self._round(self.contributed, round_number, elements)

    def expectation(self, round_number: int, elements: int) -> torch.Tensor:
        """What every rank must hold after that round."""
        return self._round(self.expected, round_number, elements)

    @staticmethod
    def _round(tensor: torch.Tensor, round_number: int, elements: int) -> torch.Tensor:
        start = (round_number % _ROUNDS) * _ROUND_STRIDE_ELEMENTS
        return tensor[start : start + elements]


def sum_pattern(dtype: str, rank: int, world_size: int, elements: int, device: torch.device) -> Pattern:
    """The pattern of a sum over `world_size` ranks, for rounds of up to `elements` elements."""
    table = sum_table(dtype, world_size)
    length = elements + (_ROUNDS - 1) * _ROUND_STRIDE_ELEMENTS
    tile = _tile(min(length, _TILE_ELEMENTS), len(table.values), device)
    return Pattern(
        contributed=_spread(_numbers(table.values, dtype, device).roll(-rank), tile, length),
        expected=_spread(_numbers(table.sums, dtype, device), tile, length),
    )


def torch_dtype(name: str) -> torch.dtype:
    """Torch's dtype of that name."""
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"torch.{name} is not a dtype")
    return dtype


def _numbers(values: tuple[int, ...], dtype: str, device: torch.device) -> torch.Tensor:
    wide = torch.tensor(values, dtype=torch.int64)  # exact: no value leaves what `dtype` can hold
    return wide.to(torch_dtype(dtype)).to(device)


def _spread(numbers: torch.Tensor, tile: torch.Tensor, length: int) -> torch.Tensor:
    """`numbers` looked up at h(0), h(1), ... for `length` elements."""
    spread = torch.empty(length, dtype=numbers.dtype, device=numbers.device)
    for index, start in enumerate(range(0, length, _TILE_ELEMENTS)):
        piece = as_bits(spread[start : start + _TILE_ELEMENTS])
        rotated = as_bits(numbers.roll(-index * _TILE_ROTATION))
        torch.index_select(rotated, 0, tile[: len(piece)], out=piece)
    return spread


def _tile(elements: int, period: int, device: torch.device) -> torch.Tensor:
    """h(i) for the first elements: i scrambled by the finaliser of MurmurHash3, scaled to [0, period).

    Source: fmix32 of https://github.com/aappleby/smhasher (public domain), in 64-bit arithmetic.
    """
    mixed = torch.arange(1, elements + 1, dtype=torch.int64, device=device)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        mixed ^= mixed >> shift
        mixed = (mixed * factor) & 0xFFFFFFFF
    return (mixed * period) >> 32
