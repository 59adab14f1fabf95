"""Verifies each timed buffer after the operation, counts wrong elements, and emits them at once."""

from dataclasses import dataclass, field

import torch

from gpudiag.collectives.buffers import Buffers
from gpudiag.collectives.cases import Case
from gpudiag.collectives.diagnose import diagnose
from gpudiag.collectives.pattern import Pattern, as_bits
from gpudiag.collectives.process_group import ProcessGroup
from gpudiag.collectives.results import RankCase, WrongBuffer, WrongElements
from gpudiag.collectives.tables import tolerance_ulps
from gpudiag.model.codec import encode
from gpudiag.model.operation import OPERATIONS, Block

# Buffers are compared in pieces, and only the first wrong offsets are kept: a wholly wrong one of 8 GiB must
# be reported with the memory that is left, not run out of it.
_PIECE_ELEMENTS = 1 << 24
_KEPT_OFFSETS = 1 << 16

# Wrong buffers of one case that are described; the others are only counted.
_DESCRIBED_BUFFERS = 8


@dataclass(slots=True)
class Tally:
    """Times and verification of one case so far; `freeze` is what the rank emits."""

    operations: int = 0
    times_nanoseconds: list[int] = field(default_factory=list)
    entered_nanoseconds: list[int] = field(default_factory=list)
    isolated_nanoseconds: list[int] = field(default_factory=list)
    verified_iterations: int = 0
    wrong_elements: int = 0
    described_buffers: int = 0
    measure_seconds: float = 0.0
    verify_seconds: float = 0.0

    def freeze(self, rank: int, case: int) -> RankCase:
        """The finished tally of that rank and case."""
        return RankCase(
            rank=rank,
            case=case,
            operations=self.operations,
            times_nanoseconds=tuple(self.times_nanoseconds),
            entered_nanoseconds=tuple(self.entered_nanoseconds),
            isolated_nanoseconds=tuple(self.isolated_nanoseconds),
            verified_iterations=self.verified_iterations,
            wrong_elements=self.wrong_elements,
            measure_seconds=self.measure_seconds,
            verify_seconds=self.verify_seconds,
        )


@dataclass(frozen=True, slots=True)
class WrongFound:
    """What is wrong in a buffer, and the offsets of the first wrong elements, ascending."""

    elements: WrongElements
    offsets: torch.Tensor


def find_wrong(found: torch.Tensor, expected: torch.Tensor, tolerance_ulps: int = 0) -> WrongFound | None:
    """The wrong elements; None if nothing is wrong.

    Compared bit for bit, or within `tolerance_ulps` units in the last place.
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
    """The number of ascending offsets, from the first, without a gap between them."""
    breaks = torch.nonzero(torch.diff(offsets) != 1)
    return int(breaks[0]) + 1 if len(breaks) else len(offsets)


def _union(masks: torch.Tensor) -> int:
    """All bits that are set in any mask, by halves (torch has no reduction by OR)."""
    while len(masks) > 1:
        half = len(masks) // 2
        odd = masks[2 * half :]
        masks = torch.cat((masks[:half] | masks[half : 2 * half], odd))
    return int(masks[0])


class Inspector:
    """Verifies the buffers of one case on this rank."""

    def __init__(self, group: ProcessGroup, pattern: Pattern, index: int, case: Case, tally: Tally) -> None:
        """Add to `tally` what is found."""
        self._group = group
        self._pattern = pattern
        self._index = index
        self._case = case
        self._tally = tally
        self._layout = OPERATIONS[case.op].layout(group.rank, group.world_size)
        self._tolerance_ulps = tolerance_ulps(case.reduce or "", case.dtype, group.world_size)

    def looks_at(self, buffers: Buffers) -> bool:
        """Whether a result on this rank has any data to verify."""
        return bool(self._layout.receive) and buffers.part_elements > 0

    def inspect(self, buffers: Buffers, round_number: int, *, counted: bool = True) -> None:
        """Verify every part of a result; `round_number` is that of its data, and its iteration."""
        if counted:
            self._tally.verified_iterations += 1
        for part, block in enumerate(self._layout.receive):
            self._inspect_part(buffers, part, block, round_number)

    def _inspect_part(self, buffers: Buffers, part: int, block: Block, round_number: int) -> None:
        found = buffers.part(part)
        expected = self._pattern.expected(block, round_number, buffers.part_elements)
        found_wrong = find_wrong(found, expected, self._tolerance_ulps)
        if found_wrong is None:
            return
        wrong, offsets = found_wrong.elements, found_wrong.offsets
        self._tally.wrong_elements += wrong.count
        self._tally.described_buffers += 1
        if self._tally.described_buffers > _DESCRIBED_BUFFERS:
            return
        start = part * buffers.part_elements
        told = WrongBuffer(
            rank=self._group.rank,
            case=self._index,
            iteration=round_number,
            part=part,
            source=block.source,
            elements=WrongElements(
                count=wrong.count,
                first_offset=wrong.first_offset + start,
                last_offset=wrong.last_offset + start,
                run_length=wrong.run_length,
                xor_mask=wrong.xor_mask,
                flipped_bits=wrong.flipped_bits,
            ),
            diagnosis=diagnose(self._pattern, self._case.reduce, block, round_number, found, offsets),
        )
        self._group.progress.emit({"kind": "wrong_buffer", **encode(told)})
