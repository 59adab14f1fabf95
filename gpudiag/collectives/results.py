"""What one rank tells about one case, and the CollectiveResult that all ranks' telling makes."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from gpudiag.collectives.cases import Case
from gpudiag.collectives.formulas import algbw_bytes_per_second, busbw_bytes_per_second
from gpudiag.model.measure import CollectiveResult
from gpudiag.model.reading import NOT_ASKED

_SECONDS_PER_NANOSECOND = 1e-9


@dataclass(frozen=True, slots=True)
class WrongElements:
    """What is wrong in one buffer: offsets in elements from its start, and the bits that differ.

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
class WrongBuffer:
    """A timed buffer with wrong elements in it: seen by which rank, in which case and iteration.

    `iteration` counts from 0 over the whole run, as `--inject` does.
    """

    rank: int
    case: int
    iteration: int
    elements: WrongElements


@dataclass(frozen=True, slots=True)
class RankCase:
    """One rank's times of one case, in nanoseconds per iteration, and what it verified."""

    rank: int
    case: int
    times_nanoseconds: tuple[int, ...]
    verified_iterations: int
    wrong_elements: int
    measure_seconds: float  # of the whole timed part, waiting for the others included
    verify_seconds: float  # filling and comparing the buffers


def merge_ranks(case: Case, told: Sequence[RankCase], world_size: int) -> CollectiveResult:
    """The result of a case that every rank has told about.

    The time of an iteration is that of its slowest rank: only then is the operation done.
    """
    slowest = [max(times) for times in zip(*(rank.times_nanoseconds for rank in told), strict=True)]
    everything = [time for rank in told for time in rank.times_nanoseconds]
    p50 = statistics.median(slowest) * _SECONDS_PER_NANOSECOND
    algbw = algbw_bytes_per_second(case.size_bytes, p50)
    verified_iterations = min(rank.verified_iterations for rank in told)
    wrong_elements = sum(rank.wrong_elements for rank in told)
    return CollectiveResult(
        op=case.op,
        reduce=case.reduce,
        dtype=case.dtype,
        size_bytes=case.size_bytes,
        elements=case.elements,
        iterations=len(slowest),
        time_p50_seconds=p50,
        time_p99_seconds=nearest_rank(slowest, 0.99) * _SECONDS_PER_NANOSECOND,
        time_average_seconds=statistics.fmean(everything) * _SECONDS_PER_NANOSECOND,
        algbw_bytes_per_second=algbw,
        busbw_bytes_per_second=busbw_bytes_per_second(case.op, algbw, world_size),
        verified=wrong_elements == 0 if verified_iterations else NOT_ASKED,
        verified_iterations=verified_iterations,
        wrong_elements=wrong_elements if verified_iterations else NOT_ASKED,
    )


def nearest_rank(values: Sequence[int], share: float) -> int:
    """The smallest of `values` that at least that share of them do not exceed: always one of them."""
    return sorted(values)[max(1, math.ceil(share * len(values))) - 1]
