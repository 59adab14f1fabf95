"""How long ranks may do what they do while others wait for them: what is news, and what is a hang."""

from dataclasses import dataclass

from gpudiag.checks.job import activity as at
from gpudiag.checks.job import kinds
from gpudiag.checks.job.groups import Group, describe_seconds
from gpudiag.checks.job.hang_limits import HangLimits
from gpudiag.checks.job.missing_ranks import is_first_meeting
from gpudiag.checks.job.movement import wakes_in
from gpudiag.checks.job.position import Position
from gpudiag.checks.job.waiters import Waiters
from gpudiag.checks.job.ways import find_except
from gpudiag.checks.registry import FindingKind
from gpudiag.reference.stacks import own_frames
from gpudiag.reference.waits import COMPILER, GPU

# Ranks in these do not go on by themselves, however long one waits.
NEVER_TIMED = frozenset((at.STOPPED, at.DEBUGGER, at.TERMINAL))


@dataclass(frozen=True, slots=True)
class _Awaited:
    """Ranks that do the same while others wait for them, and the limits of that."""

    group: Group
    waiters: Waiters
    limits: HangLimits

    @property
    def head(self) -> Position:
        """The first of them."""
        return self.group.head

    @property
    def waited_seconds(self) -> float:
        """For how long all that wait have waited; 0.0 where it is unknown."""
        return self.waiters.since_seconds or 0.0

    @property
    def waiters_spin(self) -> bool:
        """Whether one that waits takes processor time: since when it waits, only looks show."""
        return any(one.busy for one in self.waiters.positions)

    @property
    def works(self) -> bool:
        """Whether each of them moves, or takes processor time."""
        return all(one.moves or one.busy for one in self.group.positions)

    @property
    def still_seconds(self) -> float:
        """For how long they have stood still at least while others waited for them.

        That they wait now, and stood still between the looks, is seen; a thread of backward passes shows how
        long. A rank that waits for a worker or a queue wakes up now and then to look: then what it waits for
        shows it.
        """
        waited = self.waiters.since_seconds
        if self.waited_seconds >= self.limits.news:
            waited = self.waiters.at_most_seconds
        times = (self.group.since_seconds, self.head.inner_since_seconds)
        own = max((one for one in times if one is not None), default=None)
        if own is None or waited is None:
            return own or waited or 0.0
        return min(own, waited)

    @property
    def tries_again(self) -> bool:
        """Whether an exception took them to where they sleep: they may try again."""
        return self.head.kind == at.SLEEP and bool(find_except(own_frames(self.head.frames)))

    @property
    def wakes_in_seconds(self) -> float | None:
        """Seconds until the last of them wakes up.

        It is None where one does not sleep, sleeps in a loop, or without a known end.
        """
        if self.head.kind != at.SLEEP or self.head.in_loop:
            return None
        ends = [wakes_in(one.seen.looks) for one in self.group.positions]
        return None if None in ends else max(end for end in ends if end is not None)

    @property
    def wakes_soon(self) -> bool:
        """Whether all of them wake up before a nap is over."""
        wakes = self.wakes_in_seconds
        return wakes is not None and wakes <= self.limits.nap


@dataclass(frozen=True, slots=True)
class _Excuse:
    """Why ranks that stand still are not blamed yet, and whether that they stand still is news already."""

    words: str
    is_news: bool


def judge_awaited(group: Group, waiters: Waiters, limits: HangLimits) -> tuple[FindingKind, str] | None:
    """The kind of finding for ranks that others wait for, and the limit that is passed.

    It is None where it is no news.
    """
    if group.head.kind == at.GONE:
        gone = kind_of_gone(waiters.since_seconds, limits)
        return None if gone is None else (gone, "")
    if group.head.kind in NEVER_TIMED:
        return kinds.OF_POSITION[group.head.kind], ""
    awaited = _Awaited(group, waiters, limits)
    if not awaited.works and group.head.kind in kinds.OF_POSITION and group.head.kind != GPU:
        return _judge_still(awaited)
    return _judge_slow(awaited)


def kind_of_gone(stood: float | None, limits: HangLimits) -> FindingKind | None:
    """The kind of finding for a rank that has ended, by how long the others have stood still since.

    It is None where that is no news: ranks of a job that ends go one after the other.
    """
    if stood is None or stood >= limits.still:
        return kinds.GONE
    return kinds.NOT_YET if stood >= limits.news else None


def _judge_still(awaited: _Awaited) -> tuple[FindingKind, str] | None:
    """The finding for ranks that stand still."""
    for find_excuse in (_disk_is_busy, _ranks_start, _it_tries_again, _it_wakes_up):
        excuse = find_excuse(awaited)
        if excuse is not None:
            return (kinds.NOT_YET, f"; {excuse.words} it is called a hang") if excuse.is_news else None
    still, limits = awaited.still_seconds, awaited.limits
    if still >= limits.still:
        wakes = awaited.wakes_in_seconds
        ends = "" if wakes is None else f"; it wakes up in {describe_seconds(wakes)}"
        return kinds.OF_POSITION[awaited.head.kind], ends
    if still < limits.news and awaited.waited_seconds < limits.still:
        return None
    return kinds.NOT_YET, f"; it has not moved for {still:.1f} s, which is less than {limits.still:g} s"


def _disk_is_busy(awaited: _Awaited) -> _Excuse | None:
    head, limits = awaited.head, awaited.limits
    slow = head.on_disk or head.inner_kind in at.MAY_BE_SLOW
    if not slow or awaited.still_seconds >= limits.disk:
        return None
    who = "a disk may be busy" if head.on_disk else "a loader may be slow"
    if head.kind == COMPILER:
        who = "its processes may wait for a server"
    return _Excuse(f"{who}: after {limits.disk:g} s", awaited.waited_seconds >= limits.alone)


def _ranks_start(awaited: _Awaited) -> _Excuse | None:
    still, limits = awaited.still_seconds, awaited.limits
    if awaited.head.kind != at.SLEEP or not is_first_meeting(awaited.waiters) or still >= limits.absent:
        return None
    return _Excuse(f"ranks may still be starting: after {limits.absent:g} s", still >= limits.still)


def _it_tries_again(awaited: _Awaited) -> _Excuse | None:
    limits = awaited.limits
    soon = f" in {describe_seconds(awaited.wakes_in_seconds)}" if awaited.wakes_soon else ""
    limit = limits.idle if soon else limits.alone
    if not awaited.tries_again or awaited.waited_seconds >= limit or awaited.waiters_spin:
        return None
    words = f"it may try again{soon}: once the others have waited for {limit:g} s"
    return _Excuse(words, awaited.still_seconds >= limits.still)


def _it_wakes_up(awaited: _Awaited) -> _Excuse | None:
    limits, waited = awaited.limits, awaited.waiters.since_seconds
    if not awaited.wakes_soon or waited is None or waited >= limits.idle:
        return None
    when = f"it wakes up in {describe_seconds(awaited.wakes_in_seconds)}"
    words = f"{when}: once the others have waited for {limits.idle:g} s"
    return _Excuse(words, awaited.still_seconds >= limits.still)


def _judge_slow(awaited: _Awaited) -> tuple[FindingKind, str] | None:
    """The finding for ranks that move, or take processor time."""
    head, limits, waited = awaited.head, awaited.limits, awaited.waited_seconds
    throttle = head.throttle
    goes_on = (head.moves and not head.in_loop) or waited < limits.work
    if throttle is not None and awaited.works and goes_on:
        is_news = waited >= limits.news or awaited.waiters_spin
        return (kinds.THROTTLED, f"; {throttle.words}") if is_news else None
    if head.in_loop and not (head.polls and head.moves):
        if waited >= limits.loop:
            return kinds.LOOP, ""
        return kinds.NOT_YET, f"; the others have waited for less than {limits.loop:g} s"
    sign = "it moves" if head.moves else "it takes processor time, and nothing else of it moves"
    work = f"{limits.work:g} s ({limits.work_flag})"
    if waited >= limits.work:
        return kinds.WORKS_LONG, f"; {sign}, and the others have waited for more than {work}"
    # One of which only processor time moves may hang, and is reported at once.
    if waited >= (limits.still if awaited.waiters_spin else limits.alone) or not head.moves:
        return kinds.WORKS_ALONE, f"; {sign}, and after {work} it is called a hang"
    return None
