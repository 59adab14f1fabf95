"""Looks at each timed buffer after the operation, counts what is wrong, and tells of it at once."""

from gpudiag.collectives.buffers import Buffers
from gpudiag.collectives.cases import Case
from gpudiag.collectives.diagnose import diagnose
from gpudiag.collectives.layouts import LAYOUTS, Block
from gpudiag.collectives.pattern import Pattern
from gpudiag.collectives.process_group import ProcessGroup
from gpudiag.collectives.results import WrongBuffer, WrongElements
from gpudiag.collectives.tables import tolerance_ulps
from gpudiag.collectives.tally import Tally
from gpudiag.collectives.verify import find_wrong
from gpudiag.model.codec import encode

# Wrong buffers of one case that are described; the others are only counted.
_DESCRIBED_BUFFERS = 8


class Inspector:
    """Verifies the buffers of one case on this rank."""

    def __init__(self, group: ProcessGroup, pattern: Pattern, index: int, case: Case, tally: Tally) -> None:
        """Add to `tally` what is found."""
        self._group = group
        self._pattern = pattern
        self._index = index
        self._case = case
        self._tally = tally
        self._layout = LAYOUTS[case.op](group.rank, group.world_size)
        self._tolerance_ulps = tolerance_ulps(case.reduce or "", case.dtype, group.world_size)

    def looks_at(self, buffers: Buffers) -> bool:
        """Whether there is anything in a result on this rank that is verified."""
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
