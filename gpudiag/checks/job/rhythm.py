"""The rhythm of a job, from its ranks' pulses alone: how long one round of its work takes.

A training step makes every rank run and then wait for the others, so its main thread falls asleep at the same
points of every step. Two ways to see that, the stricter first:

1. How the ranks spend their time repeats itself: the shortest shift at which the record resembles itself
   about as well as at any other is the step's length. Compared are the share of time asleep (gloo, and
   whatever blocks), and how often threads went to sleep (with NCCL they spin while they wait, and sleep in
   each backward pass for autograd's own thread).
2. On a busy machine no step is like the other, but the ranks still meet: moments at which most of them went
   to sleep together, some time apart. Of a step in which they meet several times, this gives the part between
   two meetings.

Time in which a thread is ready to run and gets no processor counts as running, so the load of the machine is
no sleep.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median

from gpudiag.model.job_run import Pulse, StepTime
from gpudiag.model.reading import Missing, MissingReason, Reading

# A shift must make the record resemble itself at least so much: below, shifts by chance are as good (own
# recordings).
LEAST_STRENGTH = 0.5
# Every multiple of a step resembles the record as well: the shortest within this share of the best is the
# step.
NEAR_BEST = 0.8
ROUNDS_AT_LEAST = 4
# A shorter shift than this many readings may be chance.
_SHORTEST_SHIFT = 3
_READINGS_AT_LEAST = 40
# Ranks meet where at least this share of them goes to sleep within two readings.
_MEETING_SHARE = 0.6
# Times between meetings that are left out on either side, the longest and the shortest: pauses, and one
# meeting in two.
_LEFT_OUT = 0.1


_NO_RHYTHM = Missing(MissingReason.NOT_SUPPORTED, "the ranks do not run and wait in a repeating pattern")


def find_step_time(pulses: Mapping[int, Sequence[Pulse]]) -> Reading[StepTime]:
    """How long a step takes, by the pulses of each rank, which were read at about the same moments."""
    length = min((len(series) for series in pulses.values()), default=0)
    if length < _READINGS_AT_LEAST:
        return Missing(MissingReason.NOT_ASKED, "the job has not been watched for long enough")
    recent = [series[-length:] for series in pulses.values()]
    return _by_likeness(recent) or _by_meetings(recent) or _NO_RHYTHM


def find_long_step_time(pulses: Mapping[int, Sequence[Pulse]]) -> Reading[StepTime]:
    """The same for steps too long for a minute's pulses, by pulses a second or more apart."""
    length = min((len(series) for series in pulses.values()), default=0)
    if length < _READINGS_AT_LEAST:
        return Missing(MissingReason.NOT_ASKED, "the job has not been watched for long enough")
    return _by_likeness([series[-length:] for series in pulses.values()]) or _NO_RHYTHM


def count_meetings(pulses: Mapping[int, Sequence[Pulse]]) -> int:
    """How often the ranks met in the time of these pulses."""
    length = min((len(series) for series in pulses.values()), default=0)
    return len(find_meetings([series[-length:] for series in pulses.values()])) if length > 2 else 0


def _by_likeness(recent: Sequence[Sequence[Pulse]]) -> StepTime | None:
    over_seconds = recent[0][-1].at_seconds - recent[0][0].at_seconds
    longest = (len(recent[0]) - 1) // ROUNDS_AT_LEAST
    likeness = _mean_likeness([_asleep_shares(recent), _times_to_sleep(recent)], longest)
    shift = _shortest_good_shift(likeness)
    if shift is None:
        return None
    seconds = _refined(likeness, shift) * over_seconds / (len(recent[0]) - 1)
    rounds = int(over_seconds / seconds)
    return StepTime(round(seconds, 3), rounds, round(likeness[shift], 2), round(over_seconds, 1))


def _by_meetings(recent: Sequence[Sequence[Pulse]]) -> StepTime | None:
    apart = sorted(after - before for before, after in pairwise(find_meetings(recent)))
    if len(apart) < ROUNDS_AT_LEAST:
        return None
    left_out = int(len(apart) * _LEFT_OUT)
    kept = apart[left_out : len(apart) - left_out]
    seconds = sum(kept) / len(kept)
    alike = sum(seconds / 2 <= one <= seconds * 2 for one in apart) / len(apart)
    if alike < LEAST_STRENGTH:
        return None
    over_seconds = recent[0][-1].at_seconds - recent[0][0].at_seconds
    return StepTime(round(seconds, 3), len(apart), round(alike, 2), round(over_seconds, 1))


def find_meetings(recent: Sequence[Sequence[Pulse]]) -> list[float]:
    """The moments at which most ranks went to sleep together; those that follow at once are one meeting."""
    needed = max(1, math.ceil(_MEETING_SHARE * len(recent)))
    slept = [[after.sleeps > before.sleeps for before, after in pairwise(series)] for series in recent]
    moments: list[float] = []
    last = -_SHORTEST_SHIFT
    for reading in range(1, len(slept[0])):
        if sum(one[reading] or one[reading - 1] for one in slept) < needed:
            continue
        if reading - last >= _SHORTEST_SHIFT:
            moments.append(median(series[reading].at_seconds for series in recent))
        last = reading
    return moments


def asleep_share(before: Pulse, after: Pulse) -> float:
    """The share of time between two pulses in which the thread neither ran nor waited to run."""
    passed = after.at_seconds - before.at_seconds
    if passed <= 0:
        return 0.0
    busy = after.ran_seconds - before.ran_seconds + after.queued_seconds - before.queued_seconds
    return min(1.0, max(0.0, 1.0 - busy / passed))


def _asleep_shares(ranks: Sequence[Sequence[Pulse]]) -> list[float]:
    """Reading by reading, how much of all ranks was asleep."""
    of_each = [[asleep_share(*two) for two in pairwise(series)] for series in ranks]
    return [sum(shares) for shares in zip(*of_each, strict=True)]


def _times_to_sleep(ranks: Sequence[Sequence[Pulse]]) -> list[float]:
    """Reading by reading, how often ranks went to sleep; many times at once count little more than a few."""
    of_each = [[after.sleeps - before.sleeps for before, after in pairwise(series)] for series in ranks]
    return [sum(math.log1p(max(0, count)) for count in counts) for counts in zip(*of_each, strict=True)]


def _mean_likeness(records: Sequence[Sequence[float]], longest: int) -> list[float]:
    """By shift, in readings, how much the records resemble themselves (autocorrelation, 1 is the same)."""
    known = [likeness for record in records if (likeness := _likeness(record, longest))]
    return [sum(values) / len(known) for values in zip(*known, strict=True)] if known else []


def _likeness(record: Sequence[float], longest: int) -> list[float]:
    """The autocorrelation for shifts from 0 to `longest`; empty for a record that never changes."""
    count = len(record)
    mean = sum(record) / count
    apart = [value - mean for value in record]
    spread = sum(value * value for value in apart) / count
    if spread < 1e-9:
        return []
    return [
        sum(map(float.__mul__, apart, apart[shift:])) / (count - shift) / spread
        for shift in range(longest + 1)
    ]


def _shortest_good_shift(likeness: Sequence[float]) -> int | None:
    """The shortest shift that is a peak and about as good as the best one; None where none is good."""
    peaks = [
        shift
        for shift in range(_SHORTEST_SHIFT, len(likeness) - 1)
        if likeness[shift - 1] < likeness[shift] >= likeness[shift + 1]
    ]
    best = max((likeness[shift] for shift in peaks), default=0.0)
    if best < LEAST_STRENGTH:
        return None
    return next(shift for shift in peaks if likeness[shift] >= NEAR_BEST * best)


def _refined(likeness: Sequence[float], shift: int) -> float:
    """The peak's place between readings, by the parabola through it and its neighbours."""
    before, at, after = likeness[shift - 1 : shift + 2]
    bend = before - 2 * at + after
    return shift if bend == 0 else shift + 0.5 * (before - after) / bend
