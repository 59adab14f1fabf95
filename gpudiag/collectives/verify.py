"""The elements of a result that are not exactly what they must be."""

import torch

from gpudiag.collectives.pattern import as_bits
from gpudiag.collectives.results import WrongElements

# Wrong elements are looked up in pieces, so that a wholly wrong 8 GiB buffer costs no 64 GiB of indices.
_PIECE_ELEMENTS = 1 << 22


def compare(found: torch.Tensor, expected: torch.Tensor) -> WrongElements | None:
    """What is wrong in `found`, bit for bit; None where nothing is."""
    found_bits, expected_bits = as_bits(found), as_bits(expected)
    if torch.equal(found_bits, expected_bits):
        return None
    offsets = _wrong_offsets(found_bits, expected_bits)
    masks = found_bits[offsets] ^ expected_bits[offsets]
    all_bits = (1 << (8 * found.element_size())) - 1
    return WrongElements(
        count=len(offsets),
        first_offset=int(offsets[0]),
        last_offset=int(offsets[-1]),
        run_length=_first_run(offsets),
        xor_mask=int(masks[0]) & all_bits,
        flipped_bits=_union(masks) & all_bits,
    )


def _wrong_offsets(found: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    pieces = [
        torch.nonzero(found[start : start + _PIECE_ELEMENTS] != expected[start : start + _PIECE_ELEMENTS])
        + start
        for start in range(0, len(found), _PIECE_ELEMENTS)
    ]
    return torch.cat(pieces).flatten()


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
