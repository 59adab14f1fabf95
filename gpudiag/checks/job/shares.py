"""How ranks share the waiting, and who is slow: the one that waits least for the others.

Ranks that meet in every step take equally long; only the slow one does not wait. Judged is, in blocks of some
seconds, how much less a rank waits than the others, and that it is so in most blocks.

The kernel counts how long a rank is asleep; glances at its stack show for what share it waits for ranks (all,
if it was hardly seen). On a processor, a rank that waits for its GPU spins, and so for the ranks: by the
glances that saw such a wait (none, if it was hardly seen).
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from gpudiag.checks.job.gpu_waits import find_wait_in_frames
from gpudiag.checks.job.rhythm import asleep_share
from gpudiag.model.job import Frame
from gpudiag.model.job_run import Glance, Pulse, RankShare
from gpudiag.reference.stacks import find_awaited, read_call
from gpudiag.reference.waits import FOR_OTHERS, GPU, RANKS

BLOCK_SECONDS = 5.0
STEPS_IN_BLOCK = 10  # with fewer, which rank the kernel happened to let run first decides a block
BLOCKS_AT_LEAST = 6
_SUSPECTS_BLOCKS = 4  # by these a rank is looked at more closely, and nothing is reported
# As for the stragglers of gpudiag's own ranks (ranks/diagnosis/stragglers.py).
LATE_SHARE_OF_STEP = 0.05
CONSISTENT_SHARE = 0.75
# Glances that count as seen before the first: a sleeping rank of a job that steps most likely waits for
# ranks.
_PRIOR_GLANCES = 2.0
_CROWDED_SHARE = 0.1
_LATEST_GLANCES = 12  # the first ones are of imports
_SEEN_AT_LEAST = 3  # fewer glances show no line, no sleep of a rank's own, and no wait for a GPU
_CHANNELS_AT_LEAST = 8  # moments at which a rank was seen asleep
_ODD_SHARE = 0.4  # of them, in other functions of the kernel than the other ranks
_PAUSE_SHARE = 0.9
_OWN_RATHER_SHARE = 0.5
# A gap that glances made is one where it is so many times as large as chance makes it.
_SURE_OF_GLANCES = 2.0
_OWN_CAUSE_SHARE = 0.3  # of what the others wait more: so much of it a slow rank does more than they do


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
    late_seconds: float = 0.0  # by flight records: how much later it launches collectives than all others
    last: int = 0  # to how many of them it came last
    collectives: int = 0  # that were compared


def judge_glance(at_seconds: float, state: str, has_gpu: bool, frames: Sequence[Frame]) -> Glance:
    """Where a main thread is and what it waits for; `state`: the kernel's letter, R also where it spins."""
    call = read_call(frames)
    place = f"{call.own.place} in {call.own.function}" if call.own is not None else ""
    asleep = state != "R"
    if has_gpu and call.frame is None and (wait := find_wait_in_frames(frames)) is not None:
        return Glance(at_seconds, asleep, place, GPU, f"for its GPU ({wait.call})")
    if not asleep and call.awaited == RANKS and call.frame is None:
        return Glance(at_seconds, asleep, place, "")  # it computes in a backward pass, or in a hook
    awaited = find_awaited(call, on_gpu=asleep)
    return Glance(at_seconds, asleep, place, awaited, call.words, call.operation)


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
    *,
    suspects: bool = False,
) -> tuple[SlowRank, ...]:
    """The ranks that the others wait for in most blocks of some steps, the slowest first.

    `suspects`: also by fewer blocks, and where it may be chance which glances were taken.
    """
    if len(pulses) < 2:
        return ()
    blocks = _blocks(pulses, glances, max(BLOCK_SECONDS, STEPS_IN_BLOCK * step_seconds))
    if len(blocks) < (_SUSPECTS_BLOCKS if suspects else BLOCKS_AT_LEAST):
        return ()
    whole = {share.rank: share for share in measure_shares(pulses, glances)}
    found = []
    for rank in whole:
        ahead = [_others_wait(block, rank) - block[rank].waits_for_ranks for block in blocks]
        consistent = sum(one > LATE_SHARE_OF_STEP / 2 for one in ahead) >= CONSISTENT_SHARE * len(ahead)
        chance = 0.0 if suspects else _SURE_OF_GLANCES * _chance(rank, whole, glances)
        if consistent and median(ahead) > max(LATE_SHARE_OF_STEP, chance):
            found.append(_describe(rank, whole, len(blocks), glances.get(rank, ())))
    # On a crowded machine some rank is always behind for want of a processor, without being slow.
    sure = [one for one in found if one.cause != "queues" or one.others_wait - one.waits > _CROWDED_SHARE]
    # Who does nothing more than the others is not slow, however much they wait: something else keeps them.
    sure = [
        one
        for one in sure
        if max(_more(one.rank, whole).values()) >= _OWN_CAUSE_SHARE * (one.others_wait - one.waits)
    ]
    slow = sorted(sure, key=lambda one: one.waits - one.others_wait)
    # Half of the ranks or more are not slow: the others have less to do.
    return tuple(slow) if 2 * len(slow) < len(pulses) or len(pulses) == 2 else ()


def find_odd_sleepers(channels: Mapping[int, Sequence[str]]) -> tuple[int, ...]:
    """The ranks that sleep in other functions of the kernel (`channels`) than the rest: worth a look.

    gloo's collective waits for a lock (futex), `time.sleep` and a file for a timer or a disk.
    """
    shares = {
        rank: {name: count / len(seen) for name, count in Counter(seen).items()}
        for rank, seen in channels.items()
        if len(seen) >= _CHANNELS_AT_LEAST
    }
    odd = []
    for rank, own in shares.items():
        rest = [others for other, others in shares.items() if other != rank]
        apart = [1 - sum(min(own[name], others.get(name, 0.0)) for name in own) for others in rest]
        if apart and median(apart) >= _ODD_SHARE:
            odd.append(rank)
    return tuple(odd) if 2 * len(odd) < len(shares) else ()


def describe_late_rank(
    rank: int, pulses: Mapping[int, Sequence[Pulse]], glances: Mapping[int, Sequence[Glance]]
) -> SlowRank | None:
    """What a rank does that is known to come late; None where it, or the others, were not watched."""
    whole = {share.rank: share for share in measure_shares(pulses, glances)}
    return _describe(rank, whole, 0, glances.get(rank, ())) if rank in whole and len(whole) > 1 else None


def _share(rank: int, first: Pulse, last: Pulse, glances: Sequence[Glance]) -> RankShare:
    passed = last.at_seconds - first.at_seconds
    asleep = asleep_share(first, last)
    certain = _asleep_for_ranks(glances)
    queues = min(1.0, max(0.0, (last.queued_seconds - first.queued_seconds) / passed))
    runs = min(1.0, max(0.0, (last.ran_seconds - first.ran_seconds) / passed))
    spins = _spinning_share(glances)
    return RankShare(
        rank=rank,
        waits_for_ranks=round(min(1.0, asleep * certain + (runs + queues) * spins), 4),
        runs=round(runs * (1 - spins), 4),
        queues=round(queues * (1 - spins), 4),  # who spins wants a processor as much as who works
        sleeps=round(asleep * (1 - certain), 4),
        at=_own_place(glances),
        glances=len(glances),
    )


def _asleep_for_ranks(glances: Sequence[Glance]) -> float:
    """The share of its time asleep in which a rank waits for ranks."""
    seen = _asleep(glances)
    own = sum(map(_is_own, seen))
    # The state and the stack are read one after the other, so a single glance may see a rank asleep where it
    # computes.
    return 1 - own / (len(seen) + _PRIOR_GLANCES) if own >= _SEEN_AT_LEAST else 1.0


def _chance(rank: int, whole: Mapping[int, RankShare], glances: Mapping[int, Sequence[Glance]]) -> float:
    """The standard error of how much less a rank waits than the others, by the glances."""
    errors = {other: _error_of(share, glances.get(other, ())) for other, share in whole.items()}
    own = errors.pop(rank)
    return math.hypot(own, math.hypot(*errors.values()) / len(errors))


def _error_of(share: RankShare, glances: Sequence[Glance]) -> float:
    """The standard error of a rank's share of time in waits for ranks: that of shares of so many glances."""
    certain, spins = _asleep_for_ranks(glances), _spinning_share(glances)
    asleep = share.sleeps / (1 - certain) if certain < 1 else 0.0
    awake = (share.runs + share.queues) / (1 - spins) if spins < 1 else 0.0
    seen_asleep = len(_asleep(glances)) + _PRIOR_GLANCES
    seen_awake = len(_asleep(glances, asleep=False)) or 1
    return math.hypot(
        asleep * math.sqrt(certain * (1 - certain) / seen_asleep),
        awake * math.sqrt(spins * (1 - spins) / seen_awake),
    )


def _spinning_share(glances: Sequence[Glance]) -> float:
    """The share of its processor time in which a rank waits for a collective, or a GPU in one."""
    at_work = _asleep(glances, asleep=False)
    waits = sum(glance.awaited in FOR_OTHERS for glance in at_work)
    return waits / len(at_work) if waits >= _SEEN_AT_LEAST else 0.0


def _is_own(glance: Glance) -> bool:
    """Whether the rank was seen at something of its own, and not waiting for ranks."""
    return glance.awaited not in FOR_OTHERS


def _own_place(glances: Sequence[Glance]) -> str:
    """The line of late in the function where the rank was seen most while it did not wait."""
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
    """The shares of all ranks, by block, without blocks in which none waited, or one stood still."""
    cuts = {rank: _cut(series, block_seconds) for rank, series in pulses.items()}
    blocks = []
    for place in range(min(len(cut) for cut in cuts.values())):
        if any(_stood_still(*cut[place]) for cut in cuts.values()):
            continue
        block = {rank: _share(rank, *cut[place], glances.get(rank, ())) for rank, cut in cuts.items()}
        waits = [share.waits_for_ranks for share in block.values()]
        if max(waits) > LATE_SHARE_OF_STEP and median(waits) < 1 - LATE_SHARE_OF_STEP:
            blocks.append(block)
    return blocks


def _stood_still(first: Pulse, last: Pulse) -> bool:
    """Whether a rank has not woken, or not slept, between two pulses: a pause shows nothing of steps.

    On GPUs the main thread sleeps in each step, while the backward pass runs in autograd's thread.
    """
    asleep = asleep_share(first, last)
    return first.sleeps == last.sleeps and (asleep > _PAUSE_SHARE or asleep < 1 - _PAUSE_SHARE)


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


def _more(rank: int, whole: Mapping[int, RankShare]) -> dict[str, float]:
    """What a rank does more than the others, as shares of the time."""
    own = whole[rank]
    others = [share for other, share in whole.items() if other != rank]
    runs, queues = median(one.runs for one in others), median(one.queues for one in others)
    # Who runs longer on a busy machine queues longer too, in proportion: that much is not the queue's doing.
    usual_queue = own.runs * queues / runs if runs else queues
    return {
        "runs": own.runs - runs + max(0.0, min(own.queues, usual_queue) - queues),
        "queues": own.queues - max(queues, usual_queue),
        "sleeps": own.sleeps - median(one.sleeps for one in others),
    }


def _describe(rank: int, whole: Mapping[int, RankShare], blocks: int, glances: Sequence[Glance]) -> SlowRank:
    own, more = whole[rank], _more(rank, whole)
    if _is_torn(glances, _own_place(_asleep(glances))):
        del more["sleeps"]
    cause = max(more, key=lambda name: more[name])
    if cause == "queues" and more.get("sleeps", 0.0) >= _OWN_RATHER_SHARE * more[cause]:
        cause = "sleeps"  # on a crowded machine it queues as well, whenever it has slept
    return SlowRank(
        rank=rank,
        waits=own.waits_for_ranks,
        others_wait=_others_wait(whole, rank),
        blocks=blocks,
        cause=cause,
        more=round(more[cause], 4),
        at=_own_place(_asleep(glances, asleep=cause == "sleeps")),
    )


def _asleep(glances: Sequence[Glance], *, asleep: bool = True) -> list[Glance]:
    return [glance for glance in glances if glance.asleep == asleep]


def _is_torn(glances: Sequence[Glance], place: str) -> bool:
    """Whether the rank computes in the line where it was seen asleep: it ran on during the read."""
    there = [glance for glance in glances if glance.place == place and not glance.awaited]
    asleep = len(_asleep(there))
    waits = any(glance.awaited for glance in glances if glance.place == place)
    return bool(place) and not waits and len(there) - asleep >= asleep
