"""Who came late to each collective, by the flight records of one machine's ranks: when each launched it.

`time_created_ns` is there also without TORCH_NCCL_ENABLE_TIMING. A rank that sleeps, waits for data or
computes on its host launches late; one with a slow GPU does not, and is not seen here.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from gpudiag.checks.job.shares import CONSISTENT_SHARE, LATE_SHARE_OF_STEP
from gpudiag.model.job_state import FlightRecord, RecordedCall

COLLECTIVES_AT_LEAST = 8
_LATE_SECONDS = 0.005  # less is what the kernel's scheduler does


@dataclass(frozen=True, slots=True)
class LateRank:
    """A rank that launches most collectives after all others: by how much, in which share of them."""

    rank: int
    late_seconds: float  # the median of those to which it came last
    last: int  # collectives to which it came last
    collectives: int  # that all ranks of their group have launched


def find_late_rank(records: Sequence[FlightRecord], step_seconds: float = 0.0) -> LateRank | None:
    """The rank that is last in three of four collectives, by a twentieth of a step; None where none is.

    The step, if unknown, is the time between late launches.
    """
    # By rank: when it launched, how much later than the next to last.
    lates: dict[int, list[tuple[float, float]]] = defaultdict(list)
    compared = 0
    for launches in _launches(records):
        if len(launches) < 2:
            continue
        compared += 1
        (_, before), (last, at) = sorted(launches.items(), key=lambda item: item[1])[-2:]
        lates[last].append((at, at - before))
    if compared < COLLECTIVES_AT_LEAST or not lates:
        return None
    rank, times = max(lates.items(), key=lambda item: len(item[1]))
    late_seconds = median(late for _, late in times)
    apart = [after - before for (before, _), (after, _) in pairwise(sorted(times))]
    step = step_seconds or (median(apart) if apart else 0.0)
    if len(times) < CONSISTENT_SHARE * compared:
        return None
    if late_seconds < max(_LATE_SECONDS, LATE_SHARE_OF_STEP * step):
        return None
    return LateRank(rank, late_seconds, len(times), compared)


def _launches(records: Sequence[FlightRecord]) -> list[Mapping[int, float]]:
    """Of each collective that all members of its group have launched, when each rank did."""
    by_call: dict[tuple[str, str, int], dict[int, float]] = defaultdict(dict)
    members: dict[str, set[int]] = defaultdict(set)
    for record in records:
        if not isinstance(record.rank, int):
            continue
        for call in record.calls:
            if not call.is_point_to_point and call.sequence >= 0 and isinstance(call.created_at, float):
                members[_group(call)].add(record.rank)
                by_call[_group(call), call.operation, call.sequence].setdefault(record.rank, call.created_at)
    return [times for (group, _, _), times in by_call.items() if times.keys() == members[group]]


def _group(call: RecordedCall) -> str:
    return f"{call.backend} {call.group}"
