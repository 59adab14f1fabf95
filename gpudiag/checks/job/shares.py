"""How ranks share the waiting, and who is slow: the one that waits least for the others.

Ranks that meet in every step take equally long for it, whoever is slow: only the slow one does not wait. Judged is, in
blocks of some seconds, how much less of its time a rank waits for ranks than the others do, and that it is so in most blocks.

How long a rank is asleep is counted by the kernel, without gaps. What it is asleep for is known at the moments at which its stack was
looked at: of the time asleep, as much is waiting for ranks as of these glances, while a rank of which little was seen is taken to
wait for ranks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from gpudiag.checks.job.rhythm import asleep_share
from gpudiag.model.job_run import Glance, Pulse, RankShare
from gpudiag.reference.waits import FOR_OTHERS

BLOCK_SECONDS = 5.0
STEPS_IN_BLOCK = 10  # with fewer, which rank the kernel happened to let run first decides a block
BLOCKS_AT_LEAST = 6
SUSPECTS_BLOCKS = 4  # by these a rank is looked at more closely, and nothing is told
# As for the stragglers of gpudiag's own ranks (ranks/diagnosis/stragglers.py).
LATE_SHARE_OF_STEP = 0.05
CONSISTENT_SHARE = 0.75
# Glances that count as seen before the first: a sleeping rank of a job that steps most likely waits for ranks.
_PRIOR_GLANCES = 2.0
_CROWDED_SHARE = 0.1
_LATEST_GLANCES = 12  # the first ones are of imports
_SEEN_AT_LEAST = 3  # fewer glances tell no line, and no sleep of a rank's own


@dataclass(frozen=True, slots=True)
class SlowRank:
    """A rank that waits less than the others: by which share of its time, and what it does instead."""

    rank: int
    waits: float  # share of the time, 0 to 1
    others_wait: float  # the median of the others
    blocks: int
    cause: str  # runs, queues or sleeps: what it does so much more than the others
    more: float  # by which share of the time
    at: str = ""


def measure_shares(
    pulses: Mapping[int, Sequence[Pulse]], glances: Mapping[int, Sequence[Glance]]
) -> tuple[RankShare, ...]:
    """How each rank spent the time of its pulses; empty for a rank of which there are not two."""
    return tuple(
        _share(rank, series[0], series[-1], glances.get(rank, ()))
        for rank, series in sorted(pulses.items())
        if len(series) > 1
    )


def find_slow_ranks(
    pulses: Mapping[int, Sequence[Pulse]],
    glances: Mapping[int, Sequence[Glance]],
    step_seconds: float = 0.0,
    blocks_at_least: int = BLOCKS_AT_LEAST,
) -> tuple[SlowRank, ...]:
    """The ranks that the others wait for in most blocks of time, the slowest first; a block has some steps."""
    if len(pulses) < 2:
        return ()
    blocks = _blocks(pulses, glances, max(BLOCK_SECONDS, STEPS_IN_BLOCK * step_seconds))
    if len(blocks) < blocks_at_least:
        return ()
    whole = {share.rank: share for share in measure_shares(pulses, glances)}
    found = []
    for rank in whole:
        ahead = [_others_wait(block, rank) - block[rank].waits_for_ranks for block in blocks]
        consistent = sum(one > LATE_SHARE_OF_STEP / 2 for one in ahead) >= CONSISTENT_SHARE * len(ahead)
        if consistent and median(ahead) > LATE_SHARE_OF_STEP:
            found.append(_describe(rank, whole, len(blocks), glances.get(rank, ())))
    # On a crowded machine some rank is always behind for want of a processor, without being slow.
    sure = [one for one in found if one.cause != "queues" or one.others_wait - one.waits > _CROWDED_SHARE]
    slow = sorted(sure, key=lambda one: one.waits - one.others_wait)
    # Half of the ranks or more are not slow: the others have less to do.
    return tuple(slow) if 2 * len(slow) < len(pulses) or len(pulses) == 2 else ()


def _share(rank: int, first: Pulse, last: Pulse, glances: Sequence[Glance]) -> RankShare:
    passed = last.at_seconds - first.at_seconds
    asleep = asleep_share(first, last)
    seen = [glance for glance in glances if glance.asleep]
    for_ranks = sum(glance.awaited in FOR_OTHERS for glance in seen)
    own = len(seen) - for_ranks
    # The state and the stack are read one after the other, so a single glance may see a rank asleep where it computes.
    certain = (for_ranks + _PRIOR_GLANCES) / (len(seen) + _PRIOR_GLANCES) if own >= _SEEN_AT_LEAST else 1.0
    queues = min(1.0, max(0.0, (last.queued_seconds - first.queued_seconds) / passed))
    return RankShare(
        rank=rank,
        waits_for_ranks=round(asleep * certain, 4),
        runs=round(min(1.0, max(0.0, (last.ran_seconds - first.ran_seconds) / passed)), 4),
        queues=round(queues, 4),
        sleeps=round(asleep * (1 - certain), 4),
        at=_own_place(glances),
        glances=len(glances),
    )


def _is_own(glance: Glance) -> bool:
    """Whether the rank was seen at something of its own, and not waiting for ranks."""
    return glance.awaited not in FOR_OTHERS


def _own_place(glances: Sequence[Glance]) -> str:
    """The line of late in the function that the rank was seen in most often while it did not wait for ranks."""
    places = [glance.place for glance in glances if _is_own(glance) and glance.place][-_LATEST_GLANCES:]
    functions = [place.partition(" in ")[2] for place in places]
    function = max(functions, key=functions.count, default="")
    if functions.count(function) < _SEEN_AT_LEAST:
        return ""
    lines = [place for place in places if place.partition(" in ")[2] == function]
    return max(lines, key=lines.count)


def _blocks(
    pulses: Mapping[int, Sequence[Pulse]], glances: Mapping[int, Sequence[Glance]], block_seconds: float
) -> list[dict[int, RankShare]]:
    """The shares of all ranks, block by block; blocks in which no rank waited for another are no steps."""
    cuts = {rank: _cut(series, block_seconds) for rank, series in pulses.items()}
    blocks = []
    for place in range(min(len(cut) for cut in cuts.values())):
        block = {rank: _share(rank, *cut[place], glances.get(rank, ())) for rank, cut in cuts.items()}
        waits = [share.waits_for_ranks for share in block.values()]
        if max(waits) > LATE_SHARE_OF_STEP and median(waits) < 1 - LATE_SHARE_OF_STEP:
            blocks.append(block)
    return blocks


def _cut(series: Sequence[Pulse], block_seconds: float) -> list[tuple[Pulse, Pulse]]:
    """The first and the last pulse of each block."""
    if not series:
        return []
    marks = [series[0]]
    for pulse in series:
        if pulse.at_seconds - marks[-1].at_seconds >= block_seconds:
            marks.append(pulse)
    return list(pairwise(marks))


def _others_wait(block: Mapping[int, RankShare], rank: int) -> float:
    return median(share.waits_for_ranks for other, share in block.items() if other != rank)


def _describe(rank: int, whole: Mapping[int, RankShare], blocks: int, glances: Sequence[Glance]) -> SlowRank:
    own = whole[rank]
    others = [share for other, share in whole.items() if other != rank]
    runs, queues = median(one.runs for one in others), median(one.queues for one in others)
    # Who runs longer on a busy machine queues longer too, in proportion: that much is not the queue's doing.
    usual_queue = own.runs * queues / runs if runs else queues
    more = {
        "runs": own.runs - runs + max(0.0, min(own.queues, usual_queue) - queues),
        "queues": own.queues - max(queues, usual_queue),
        "sleeps": own.sleeps - median(one.sleeps for one in others),
    }
    if _is_torn(glances, _own_place(_asleep(glances))):
        del more["sleeps"]
    cause = max(more, key=lambda name: more[name])
    return SlowRank(
        rank=rank,
        waits=own.waits_for_ranks,
        others_wait=median(share.waits_for_ranks for share in others),
        blocks=blocks,
        cause=cause,
        more=round(more[cause], 4),
        at=_own_place(_asleep(glances, asleep=cause == "sleeps")),
    )


def _asleep(glances: Sequence[Glance], *, asleep: bool = True) -> list[Glance]:
    return [glance for glance in glances if glance.asleep == asleep]


def _is_torn(glances: Sequence[Glance], place: str) -> bool:
    """Whether the rank computes in the line in which it was seen asleep: it had run on when its stack was read.

    It was seen there at work as often, and by nothing known to wait.
    """
    there = [glance for glance in glances if glance.place == place and not glance.awaited]
    asleep = len(_asleep(there))
    waits = any(glance.awaited for glance in glances if glance.place == place)
    return bool(place) and not waits and len(there) - asleep >= asleep
