"""Verifies each timed buffer after its operation, counts wrong elements, and diagnoses what happened to them.

Every contribution is known exactly, so each fault of the catalogue predicts what would be found: a
result without one rank's data, or with one rank's data from another place. The first prediction that
matches every sampled wrong element is the diagnosis.
"""

from dataclasses import dataclass, replace

import torch

from gpudiag.collectives.cases import Case
from gpudiag.collectives.operations import Buffers
from gpudiag.collectives.pattern import Pattern, as_bits, tolerance_ulps
from gpudiag.collectives.process_group import ProcessGroup
from gpudiag.collectives.results import Diagnosis, RankCase, WrongBuffer, WrongElements
from gpudiag.model.codec import encode
from gpudiag.model.operation import OPERATIONS, Block

# --- what wrong data shows

# Enough wrong elements to be sure: the data repeats by chance once in hundreds of elements.
_SAMPLE_ELEMENTS = 24
# Fewer wrong elements in a row fit several displacements.
_FEWEST_FOR_DISPLACEMENT = 4
_FEWEST_FOR_SUMS = 2
# How far from its place displaced data is looked for: a few rounds, any block, any small shift.
_REACH_ELEMENTS = 1 << 17
# A library that adds up what it should not does so from the start.
_HEAD_ELEMENTS = 1024
# Beyond this many ranks only the neighbours and the root are tried.
_MOST_SOURCES = 64


@dataclass(frozen=True, slots=True)
class _Sample:
    """Some wrong elements: where they lie in the sequences, and what was found there."""

    positions: torch.Tensor
    found: torch.Tensor
    consecutive: int  # how many of them, from the first, follow each other


def diagnose(
    pattern: Pattern,
    reduce: str | None,
    block: Block,
    round_number: int,
    found: torch.Tensor,
    offsets: torch.Tensor,
) -> Diagnosis:
    """The diagnosis of one part of a result with wrong elements at `offsets`."""
    chosen = offsets[:_SAMPLE_ELEMENTS]
    start = pattern.position(block.block, round_number)
    sample = _Sample(chosen + start, found[chosen], _first_run(chosen))
    if block.source is None and reduce != "sum" and _is_sum(pattern, start, found):
        return Diagnosis("summed")
    if block.source is not None:
        diagnosis = _diagnose_moved(pattern, block.source, sample)
    elif reduce in ("sum", "avg"):
        diagnosis = _diagnose_sum(pattern, reduce, sample)
    else:
        diagnosis = _diagnose_extreme(pattern, reduce == "min", sample)
    return diagnosis or _diagnose_bits(pattern, block.source, sample)


def _sources(pattern: Pattern, first: int | None) -> list[int]:
    """The ranks to try, the most likely first."""
    everyone = range(pattern.world_size)
    if pattern.world_size > _MOST_SOURCES:
        near = range(pattern.rank - _MOST_SOURCES // 2, pattern.rank + _MOST_SOURCES // 2)
        everyone = range(0) if first is None else range(first, first + 1)
        return list(dict.fromkeys([*everyone, 0, *(rank % pattern.world_size for rank in near)]))
    return list(everyone) if first is None else list(dict.fromkeys([first, *everyone]))


def _same(found: torch.Tensor, predicted: torch.Tensor) -> bool:
    return torch.equal(as_bits(found), as_bits(predicted))


# --- data that is only moved


def _diagnose_moved(pattern: Pattern, source: int, sample: _Sample) -> Diagnosis | None:
    """Another rank's data in its place, or the right rank's from another place."""
    if len(sample.found) < _FEWEST_FOR_SUMS:
        return None
    if bool((as_bits(sample.found) == 0).all()):
        return Diagnosis("dropped", source)  # nothing was delivered
    for other in _sources(pattern, source):
        if other != source and _same(sample.found, pattern.look_up(other, sample.positions)):
            return Diagnosis("replaced", other, instead_of=source)
    for other in _sources(pattern, source):
        distance = _find_displacement(pattern, other, sample, as_bits(sample.found))
        if distance is not None:
            return _displaced(pattern, other, distance)
    return None


# --- sums and averages


def _is_sum(pattern: Pattern, start: int, found: torch.Tensor) -> bool:
    """Whether the ranks' data was added up, where something else was asked for.

    Right elements count as well: of two ranks, a bit that is stuck in the exponent doubles an average here
    and there.
    """
    sources = _sources(pattern, None)
    head = found[:_HEAD_ELEMENTS]
    if len(sources) < pattern.world_size or len(head) < _FEWEST_FOR_SUMS:
        return False
    positions = torch.arange(start, start + len(head), dtype=torch.int64, device=found.device)
    total = torch.stack([_wide(pattern.look_up(source, positions)) for source in sources]).sum(0)
    return _close(_wide(head), total, pattern, pattern.world_size)


def _diagnose_sum(pattern: Pattern, reduce: str, sample: _Sample) -> Diagnosis | None:
    """One rank's part missing, counted twice, taken from another rank, or from another place."""
    if len(sample.found) < _FEWEST_FOR_SUMS:
        return None
    scale = pattern.world_size if reduce == "avg" else 1
    excess = _wide(sample.found) * scale - _wide(pattern.look_up(None, sample.positions)) * scale
    parts = {source: _wide(pattern.look_up(source, sample.positions)) for source in _sources(pattern, None)}
    for source, part in parts.items():
        if _close(excess, -part, pattern, scale):
            return Diagnosis("dropped", source)
        if _close(excess, part, pattern, scale):
            return Diagnosis("duplicated", source)
    for instead_of, missing in parts.items():
        for source, extra in parts.items():
            if source != instead_of and _close(excess, extra - missing, pattern, scale):
                return Diagnosis("replaced", source, instead_of=instead_of)
    if scale != 1:
        return None  # contributions cannot be recovered from a rounded average
    return _diagnose_displaced_sum(pattern, sample, excess, parts)


def _diagnose_displaced_sum(
    pattern: Pattern, sample: _Sample, excess: torch.Tensor, parts: dict[int, torch.Tensor]
) -> Diagnosis | None:
    distance = _find_displacement(pattern, None, sample, as_bits(sample.found))
    if distance is not None:
        return _displaced(pattern, None, distance)
    for source, part in parts.items():
        contributed = _narrow(excess + part, pattern)
        distance = _find_displacement(pattern, source, sample, as_bits(contributed))
        if distance is not None:
            return _displaced(pattern, source, distance)
    return None


def _wide(values: torch.Tensor) -> torch.Tensor:
    """The values in a wider type, exact; 64-bit integers wrap as the operation itself would."""
    return values.to(torch.float64 if values.is_floating_point() else torch.int64)


def _narrow(values: torch.Tensor, pattern: Pattern) -> torch.Tensor:
    if values.is_floating_point():
        values = values.to(torch.float32) if pattern.dtype.itemsize == 1 else values
    return values.to(pattern.dtype)


def _close(excess: torch.Tensor, predicted: torch.Tensor, pattern: Pattern, scale: int) -> bool:
    """Whether they are the same: modulo the range of integers, within rounding for an average."""
    if not pattern.dtype.is_floating_point:
        return torch.equal(excess.to(pattern.dtype), predicted.to(pattern.dtype))
    if scale == 1:
        return torch.equal(excess, predicted)
    allowed = predicted.abs().max() * torch.finfo(pattern.dtype).eps * 4 * scale
    return bool(((excess - predicted).abs() <= allowed).all()) and bool((predicted != 0).any())


# --- minima and maxima


def _diagnose_extreme(pattern: Pattern, smallest: bool, sample: _Sample) -> Diagnosis | None:
    """One rank's data missing from the extreme, or the extreme of another place."""
    sources = _sources(pattern, None)
    if len(sources) < pattern.world_size or len(sources) < 2 or len(sample.found) < _FEWEST_FOR_SUMS:
        return None
    wide = torch.stack([_wide(pattern.look_up(source, sample.positions)) for source in sources])
    for place, source in enumerate(sources):
        others = torch.cat((wide[:place], wide[place + 1 :]))
        extreme = others.amin(0) if smallest else others.amax(0)
        if torch.equal(extreme, _wide(sample.found)):
            return Diagnosis("dropped", source)
    distance = _find_displacement(pattern, None, sample, as_bits(sample.found))
    return None if distance is None else _displaced(pattern, None, distance)


# --- displacements and bits


def _find_displacement(
    pattern: Pattern, source: int | None, sample: _Sample, wanted: torch.Tensor
) -> int | None:
    """The distance of the wanted data from its place in the sequence, in elements; None if not nearby."""
    count = sample.consecutive
    if count < _FEWEST_FOR_DISPLACEMENT:
        return None
    start = int(sample.positions[0])
    first = max(0, start - _REACH_ELEMENTS)
    places = torch.arange(first, start + _REACH_ELEMENTS + count, dtype=torch.int64, device=wanted.device)
    nearby = as_bits(pattern.look_up(source, places))
    candidates = torch.nonzero(nearby[: len(nearby) - count + 1] == wanted[0]).flatten()
    for step in range(1, count):
        candidates = candidates[nearby[candidates + step] == wanted[step]]
    distances = (candidates + first - start).tolist()
    found = [int(distance) for distance in distances if distance]
    return min(found, key=abs) if found else None


def _displaced(pattern: Pattern, source: int | None, distance: int) -> Diagnosis:
    rounds, blocks = pattern.displacement(distance)
    if rounds:
        return Diagnosis("stale", source, distance=rounds)
    if blocks:
        return Diagnosis("misplaced", source, distance=blocks)
    return Diagnosis("shifted", source, distance=distance)


def _diagnose_bits(pattern: Pattern, source: int | None, sample: _Sample) -> Diagnosis:
    """Flipped bits where each wrong element differs in few of them, else unknown."""
    masks = as_bits(sample.found) ^ as_bits(pattern.look_up(source, sample.positions))
    bits = 8 * pattern.dtype.itemsize
    counts = [(int(mask) & ((1 << bits) - 1)).bit_count() for mask in masks.tolist()]
    return Diagnosis("flipped" if max(counts) <= max(1, bits // 8) else "unknown", source)


# --- every buffer

# Buffers are compared in pieces, and only the first wrong offsets are kept: a wholly wrong one of 8 GiB must
# be reported with the memory that is left, not run out of it.
_PIECE_ELEMENTS = 1 << 24
_KEPT_OFFSETS = 1 << 16

# Wrong buffers of one case that are described; the others are only counted.
_DESCRIBED_BUFFERS = 8


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

    def __init__(self, group: ProcessGroup, pattern: Pattern, case: Case, measured: RankCase) -> None:
        """Add to `measured` what is found."""
        self._group = group
        self._pattern = pattern
        self._case = case
        self._measured = measured
        self._described = 0  # wrong buffers
        self._layout = OPERATIONS[case.op].layout(group.rank, group.world_size)
        self._tolerance_ulps = tolerance_ulps(case.reduce or "", case.dtype, group.world_size)

    def looks_at(self, buffers: Buffers) -> bool:
        """Whether a result on this rank has any data to verify."""
        return bool(self._layout.receive) and buffers.part_elements > 0

    def inspect(self, buffers: Buffers, round_number: int, *, counted: bool = True) -> None:
        """Verify every part of a result; `round_number` is that of its data, and its iteration."""
        if counted:
            self._measured.verified_iterations += 1
        first = 0
        for part, block in enumerate(self._layout.receive):
            self._inspect_part(buffers, part, first, block, round_number)
            first += block.units

    def _inspect_part(self, buffers: Buffers, part: int, first: int, block: Block, round_number: int) -> None:
        found = buffers.part(first, block.units)
        expected = self._pattern.expected(block, round_number, block.units * buffers.part_elements)
        found_wrong = find_wrong(found, expected, self._tolerance_ulps)
        if found_wrong is None:
            return
        wrong, offsets = found_wrong.elements, found_wrong.offsets
        self._measured.wrong_elements += wrong.count
        self._described += 1
        if self._described > _DESCRIBED_BUFFERS:
            return
        start = first * buffers.part_elements
        described = WrongBuffer(
            rank=self._group.rank,
            case=self._measured.case,
            iteration=round_number,
            part=part,
            source=block.source,
            elements=replace(
                wrong, first_offset=wrong.first_offset + start, last_offset=wrong.last_offset + start
            ),
            diagnosis=diagnose(self._pattern, self._case.reduce, block, round_number, found, offsets),
        )
        self._group.progress.emit({"kind": "wrong_buffer", **encode(described)})
