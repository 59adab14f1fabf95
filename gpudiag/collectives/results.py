"""What one rank emits about one case, and the CollectiveResult that all ranks' cases make."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from gpudiag.collectives.cases import Case
from gpudiag.collectives.formulas import algbw_bytes_per_second, busbw_bytes_per_second
from gpudiag.model.measure import CollectiveResult
from gpudiag.model.operation import BARRIER
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason, Reading

_SECONDS_PER_NANOSECOND = 1e-9
_MOVES_DATA = Missing(MissingReason.NOT_SUPPORTED, "the operation moves data and reduces none")
_ONE_ITERATION = Missing(MissingReason.NOT_SUPPORTED, "one sample has no spread")
_MANY_CLOCKS = Missing(MissingReason.NOT_SUPPORTED, "the machines' clocks differ")


@dataclass(frozen=True, slots=True)
class WrongElements:
    """What is wrong in one part of a buffer: offsets in elements, and the bits that differ.

    `run_length` counts the wrong elements in a row from the first one; `xor_mask` is expected XOR
    found at the first one, and `flipped_bits` every bit that differs anywhere.
    """

    count: int
    first_offset: int
    last_offset: int
    run_length: int
    xor_mask: int
    flipped_bits: int


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What must have happened to give just this wrong data.

    `kind`: flipped, dropped, duplicated, replaced, stale, misplaced, shifted, summed or unknown. `source` is
    the rank whose data is concerned, None if the wrong data does not show it; `distance` is in
    rounds (stale, negative: older), blocks (misplaced) or elements (shifted).
    """

    kind: str
    source: int | None = None
    instead_of: int | None = None  # replaced: the rank whose data should have been there
    distance: int = 0


@dataclass(frozen=True, slots=True)
class WrongBuffer:
    """A timed buffer with wrong elements: seen by which rank, in which case, iteration and part.

    `iteration` counts from 0 over the whole run, as `--inject` does; offsets in `elements` are
    counted from the start of the whole buffer. `source` is the rank that the part comes from, None
    where it is reduced over all ranks.
    """

    rank: int
    case: int
    iteration: int
    part: int
    source: int | None
    elements: WrongElements
    diagnosis: Diagnosis


@dataclass(slots=True)
class RankCase:
    """One rank's times of a case, in nanoseconds per operation, and what it verified: filled as it measures.

    `entered_nanoseconds` are the starts of these times on the host's monotonic clock; empty where CUDA
    events took the times. `isolated_nanoseconds` are times of single operations after a barrier, launch
    included; empty where only bursts were timed.
    """

    rank: int
    case: int
    operations: int = 0
    times_nanoseconds: tuple[int, ...] = ()
    entered_nanoseconds: tuple[int, ...] = ()
    isolated_nanoseconds: tuple[int, ...] = ()
    verified_iterations: int = 0
    wrong_elements: int = 0
    measure_seconds: float = 0.0  # of the timed part, waiting for the others included
    verify_seconds: float = 0.0  # of filling and comparing the buffers


@dataclass(frozen=True, slots=True)
class EarlyExit:
    """A barrier that failed: one rank left it before another had entered."""

    rank: int
    before_rank: int
    iteration: int  # of its case
    early_seconds: float


def merge_ranks(
    case: Case, ranks: Sequence[RankCase], world_size: int, *, one_clock: bool = True
) -> CollectiveResult:
    """The result of a case, from every rank's RankCase.

    The time of an iteration is that of its slowest rank: only then is the operation done.
    `one_clock`: all ranks ran on one machine.
    """
    slowest = [max(times) for times in zip(*(rank.times_nanoseconds for rank in ranks), strict=True)]
    everything = [time for rank in ranks for time in rank.times_nanoseconds]
    p50 = statistics.median(slowest) * _SECONDS_PER_NANOSECOND
    algbw = algbw_bytes_per_second(case.op, case.size_bytes, p50, world_size)
    isolated = [max(times) for times in zip(*(rank.isolated_nanoseconds for rank in ranks), strict=True)]
    measured = sum(rank.measure_seconds for rank in ranks)
    verifying = sum(rank.verify_seconds for rank in ranks)
    verified, verified_iterations, wrong_elements = _verification(case, ranks, one_clock=one_clock)
    return CollectiveResult(
        op=case.op,
        reduce=_MOVES_DATA if case.reduce is None else case.reduce,
        dtype=case.dtype,
        size_bytes=case.size_bytes,
        elements=case.elements,
        in_place=case.in_place,
        unaligned=case.unaligned,
        iterations=ranks[0].operations,
        time_p50_seconds=p50,
        time_p99_seconds=nearest_rank(slowest, 0.99) * _SECONDS_PER_NANOSECOND,
        time_average_seconds=statistics.fmean(everything) * _SECONDS_PER_NANOSECOND,
        time_variation=variation(slowest),
        isolated_p50_seconds=statistics.median(isolated) * _SECONDS_PER_NANOSECOND if isolated else NOT_ASKED,
        algbw_bytes_per_second=algbw,
        busbw_bytes_per_second=busbw_bytes_per_second(case.op, algbw, world_size),
        verified=verified,
        verified_iterations=verified_iterations,
        wrong_elements=wrong_elements,
        verify_share=verifying / (measured + verifying) if verified_iterations else NOT_ASKED,
    )


def _verification(
    case: Case, ranks: Sequence[RankCase], *, one_clock: bool
) -> tuple[Reading[bool], int, Reading[int]]:
    """Whether the data was right, the number of verified iterations, and the number of wrong elements."""
    iterations = min(rank.verified_iterations for rank in ranks)
    if not iterations:
        return NOT_ASKED, 0, NOT_ASKED
    if case.op == BARRIER:
        passed = find_early_exit(ranks) is not None
        return (not passed, iterations, 0) if one_clock else (_MANY_CLOCKS, 0, _MANY_CLOCKS)
    wrong = sum(rank.wrong_elements for rank in ranks)
    return wrong == 0, iterations, wrong


def find_early_exit(ranks: Sequence[RankCase]) -> EarlyExit | None:
    """The first time that a rank left a barrier before every rank had entered; None if none did.

    Both times are readings of one clock right around the call. A rank that is preempted on either side
    of it seems to enter earlier or to leave later than it did, never the other way round.
    """
    entered = zip(*(rank.entered_nanoseconds for rank in ranks), strict=True)
    left = zip(*(_left(rank) for rank in ranks), strict=True)
    for iteration, (ins, outs) in enumerate(zip(entered, left, strict=True)):
        last_in, first_out = max(ins), min(outs)
        if first_out < last_in:
            return EarlyExit(
                ranks[outs.index(first_out)].rank,
                ranks[ins.index(last_in)].rank,
                iteration,
                (last_in - first_out) * _SECONDS_PER_NANOSECOND,
            )
    return None


def _left(rank: RankCase) -> list[int]:
    times = zip(rank.entered_nanoseconds, rank.times_nanoseconds, strict=True)
    return [entered + time for entered, time in times]


def variation(values: Sequence[int]) -> Reading[float]:
    """The coefficient of variation: standard deviation over mean."""
    if len(values) < 2:
        return _ONE_ITERATION
    return statistics.stdev(values) / statistics.fmean(values)


def nearest_rank(values: Sequence[int], share: float) -> int:
    """The nearest-rank percentile: the smallest of `values` that at least that share does not exceed."""
    return sorted(values)[max(1, math.ceil(share * len(values))) - 1]


@dataclass(frozen=True, slots=True)
class RankFacts:
    """The software and the device that one rank runs on."""

    torch_version: str
    nccl_version: Reading[str]  # of the library that torch calls
    nccl_built_version: Reading[str]  # what torch was built with
    device_uuid: Reading[str]


@dataclass(frozen=True, slots=True)
class Ways:
    """How a rank ran its operations, where asked for: on which buffers, and whether from CUDA graphs."""

    buffers: Reading[str]
    graph: Reading[bool]
