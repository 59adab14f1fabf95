"""The elements of a result that are not exactly what they must be."""

import torch

from gpudiag.collectives.pattern import as_bits
from gpudiag.collectives.results import WrongElements

# Wrong elements are looked up in pieces, so that a wholly wrong 8 GiB buffer costs no 64 GiB of indices.
_PIECE_ELEMENTS = 1 << 22


def find_wrong(found: torch.Tensor, expected: torch.Tensor, tolerance_ulps: int = 0) -> torch.Tensor | None:
    """The offsets of the wrong elements, ascending; None where nothing is wrong.

    Compared bit for bit, or within so many units in the last place.
    """
    found_bits, expected_bits = as_bits(found), as_bits(expected)
    if torch.equal(found_bits, expected_bits):
        return None
    pieces = []
    for start in range(0, len(found_bits), _PIECE_ELEMENTS):
        piece = slice(start, start + _PIECE_ELEMENTS)
        differs = _differs(found_bits[piece], expected_bits[piece], tolerance_ulps)
        pieces.append(torch.nonzero(differs) + start)
    offsets = torch.cat(pieces).flatten()
    return offsets if len(offsets) else None


def describe_wrong(found: torch.Tensor, expected: torch.Tensor, offsets: torch.Tensor) -> WrongElements:
    """What is wrong at those offsets."""
    masks = as_bits(found)[offsets] ^ as_bits(expected)[offsets]
    all_bits = (1 << (8 * found.element_size())) - 1
    return WrongElements(
        count=len(offsets),
        first_offset=int(offsets[0]),
        last_offset=int(offsets[-1]),
        run_length=_first_run(offsets),
        xor_mask=int(masks[0]) & all_bits,
        flipped_bits=_union(masks) & all_bits,
    )


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
    """All bits that are set in any mask (torch has no reduction by OR)."""
    union = 0
    for mask in torch.unique(masks).tolist():
        union |= mask
    return union
