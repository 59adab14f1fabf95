"""Measure steps under 0.3 s, too short for ten readings a second, by a burst of a hundred readings a second.

At ten readings a second a step of 0.15 s looks alike after 0.3 s, 1.4 s, 2.5 s. A burst shows the step; a
longer rhythm counts if it stays where readings are put together to a quarter of it, which evens out short
steps.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median, pvariance

from gpudiag.checks.job.rhythm import asleep_share, find_meetings, find_step_time
from gpudiag.model.job_run import Pulse, StepTime
from gpudiag.model.reading import Missing, MissingReason, Reading

BURST_SECONDS, BURST_TICK_SECONDS = 3.0, 0.01
# Ranks that go to sleep less often than this have no step that is shorter than the usual readings show.
_SLEEPS_PER_SECOND = 3.0
_SLEEPS_PER_STEP = 2.5  # own recordings: 0.9 to 2.1 in a real step
_LATEST_SECONDS = 20.0  # what was before may be imports
_PARTS = 4
_STAYS_SHARE = 0.5  # of the spread: a rhythm keeps 0.8 of it, chance a quarter or less for a second and more
# Own recordings: real rhythms of such length 0.98 and more, multiples up to 0.75.
_SURE_SECONDS, _SURE_STRENGTH = (
    0.8,
    0.8,
)
_FILLS_SHARE = 0.7  # of a burst; else the ranks meet often in one part of a longer step

_TOO_SHORT = Missing(
    MissingReason.NOT_SUPPORTED, "the ranks meet more often, or less evenly, than the readings can resolve"
)


def wants_burst(found: Reading[StepTime], pulses: Mapping[int, Sequence[Pulse]]) -> bool:
    """Whether the ranks sleep so often that a step may be too short, or `found` be several."""
    rates = []
    for series in pulses.values():
        latest = [one for one in series if one.at_seconds >= series[-1].at_seconds - _LATEST_SECONDS]
        passed = latest[-1].at_seconds - latest[0].at_seconds
        rates.append((latest[-1].sleeps - latest[0].sleeps) / passed if passed > 0 else 0.0)
    rate = median(rates) if rates else 0.0
    in_a_step = 0.0 if isinstance(found, Missing) else rate * found.seconds
    return rate >= _SLEEPS_PER_SECOND or in_a_step >= _SLEEPS_PER_STEP


def settle_step_time(
    found: Reading[StepTime], pulses: Mapping[int, Sequence[Pulse]], burst: Mapping[int, Sequence[Pulse]]
) -> Reading[StepTime]:
    """The step time by usual pulses (`found`) and a burst; Missing where they leave it open."""
    if not isinstance(found, Missing) and _is_sure(found, pulses):
        return found
    quick = find_step_time(burst)
    if not isinstance(quick, Missing) and _fills(quick, burst):
        return quick
    return found if isinstance(found, Missing) else _TOO_SHORT


def _is_sure(found: StepTime, pulses: Mapping[int, Sequence[Pulse]]) -> bool:
    return found.seconds >= _SURE_SECONDS and found.strength >= _SURE_STRENGTH and _stays(found, pulses)


def _fills(quick: StepTime, burst: Mapping[int, Sequence[Pulse]]) -> bool:
    """Whether meetings so far apart make up the burst, and not a part of a longer step."""
    length = min(len(series) for series in burst.values())
    recent = [series[-length:] for series in burst.values()]
    apart = [after - before for before, after in pairwise(find_meetings(recent))]
    filled = sum(one for one in apart if quick.seconds / 2 <= one <= quick.seconds * 2)
    return filled >= _FILLS_SHARE * (recent[0][-1].at_seconds - recent[0][0].at_seconds)


def _stays(found: StepTime, pulses: Mapping[int, Sequence[Pulse]]) -> bool:
    """Whether the time asleep differs about as much in parts of a step as from reading to reading."""
    length = min(len(series) for series in pulses.values())
    recent = [series[-length:] for series in pulses.values()]
    passed = recent[0][-1].at_seconds - recent[0][0].at_seconds
    together = max(1, round(found.seconds / _PARTS * (length - 1) / passed)) if passed > 0 else 1
    fine, parts = _spread(recent, 1), _spread(recent, together)
    return fine > 0 and parts >= _STAYS_SHARE * fine


def _spread(recent: Sequence[Sequence[Pulse]], together: int) -> float:
    """How much the ranks' time asleep differs from one time to the next, of `together` readings each."""
    of_each = [[asleep_share(*two) for two in pairwise(series[::together])] for series in recent]
    sums = [sum(shares) for shares in zip(*of_each, strict=True)]
    return pvariance(sums) if len(sums) > 1 else 0.0
