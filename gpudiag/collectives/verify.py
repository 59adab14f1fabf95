"""The elements of a result that are not exactly what they must be."""

from dataclasses import dataclass

import torch

from gpudiag.collectives.pattern import as_bits
from gpudiag.collectives.results import WrongElements

# Buffers are compared in pieces, and only the first wrong offsets are kept: a wholly wrong one of 8 GiB must
# be told with the memory that is left, not end as a lack of it.
_PIECE_ELEMENTS = 1 << 24
_KEPT_OFFSETS = 1 << 16


@dataclass(frozen=True, slots=True)
class WrongFound:
    """What is wrong in a buffer, and the offsets of the first wrong elements, ascending."""

    elements: WrongElements
    offsets: torch.Tensor


def find_wrong(found: torch.Tensor, expected: torch.Tensor, tolerance_ulps: int = 0) -> WrongFound | None:
    """The wrong elements; None where nothing is wrong.

    Compared bit for bit, or within so many units in the last place.
    """
    found_bits, expected_bits = as_bits(found), as_bits(expected)
    count, last, bits, kept, pieces = 0, 0, 0, 0, []
    for start in range(0, len(found_bits), _PIECE_ELEMENTS):
        piece = slice(start, start + _PIECE_ELEMENTS)
        ours, theirs = found_bits[piece], expected_bits[piece]
        if torch.equal(ours, theirs):
            continue
        offsets = torch.nonzero(_differs(ours, theirs, tolerance_ulps)).flatten()
        if not len(offsets):
            continue
        count += len(offsets)
        last = start + int(offsets[-1])
        bits |= _union(ours[offsets] ^ theirs[offsets])
        pieces.append(offsets[: _KEPT_OFFSETS - kept] + start)
        kept += len(pieces[-1])
    if not count:
        return None
    first = torch.cat(pieces)
    all_bits = (1 << (8 * found.element_size())) - 1
    mask = int(found_bits[first[0]] ^ expected_bits[first[0]]) & all_bits
    run = _first_run(first)
    return WrongFound(WrongElements(count, int(first[0]), last, run, mask, bits & all_bits), first)


def _differs(found: torch.Tensor, expected: torch.Tensor, tolerance_ulps: int) -> torch.Tensor:
    if tolerance_ulps == 0:
        return found != expected
    return (_ordered(found) - _ordered(expected)).abs() > tolerance_ulps


def _ordered(bits: torch.Tensor) -> torch.Tensor:
    """The bits of floats as integers in the order of the floats: neighbours differ by one."""
    magnitude_bits = (1 << (8 * bits.element_size() - 1)) - 1
    wide = bits.to(torch.int64)
    negative = (wide < 0) | (wide > magnitude_bits)  # 8-bit floats are seen as unsigned
    return torch.where(negative, -(wide & magnitude_bits), wide)


def _first_run(offsets: torch.Tensor) -> int:
    """How many of the ascending offsets follow each other without a gap from the first."""
    breaks = torch.nonzero(torch.diff(offsets) != 1)
    return int(breaks[0]) + 1 if len(breaks) else len(offsets)


def _union(masks: torch.Tensor) -> int:
    """All bits that are set in any mask, by halves (torch has no reduction by OR)."""
    while len(masks) > 1:
        half = len(masks) // 2
        odd = masks[2 * half :]
        masks = torch.cat((masks[:half] | masks[half : 2 * half], odd))
    return int(masks[0])
