"""Which of a job's events came first: the group of the verdict, and what did not follow from it."""

import re
from collections import defaultdict
from dataclasses import dataclass
from datetime import timedelta

from gpudiag.explain.event import SKEW, Event, Standing
from gpudiag.explain.identity import Identities
from gpudiag.explain.lines import Level, read_level
from gpudiag.explain.waited import NEVER_MET, Waited
from gpudiag.reference.failures import ANY_CAUSE, failures

_GUESSED = timedelta(seconds=120)  # the time of a line without one is that of a line before it
_APART = timedelta(minutes=2)  # two faults, and not one with its consequences
_MOST_LATER = 3
_ABORTED = re.compile(r"Abort|SIGABRT|exit code 134|code[ :=]+-6\b|signal 6\b")
ABORT = -6  # the exit code of SIGABRT
REPORTS = (
    "torchrun.child_failed",
    "torchrun.stopped_others",
    "launch.child_failed",
    "launch.mpi_ended",
    "slurm.task_failed",
    "nccl.aborted",
)


@dataclass(frozen=True, slots=True)
class Group:
    """Equal events of several ranks, the earliest first."""

    events: tuple[Event, ...]

    @property
    def first(self) -> Event:
        """The earliest."""
        return self.events[0]

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that show it."""
        return tuple(sorted({event.rank for event in self.events if event.rank is not None}))

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts that show it."""
        return tuple(sorted({event.host for event in self.events if event.host}))


def is_bare_exit(event: Event) -> bool:
    """Whether an event only reports that a rank ended with an exit status."""
    return event.standing is Standing.ENDED and event.quality > 1


def is_weak_word(event: Event) -> bool:
    """Whether an event only reports that a rank was ended, not why: a signal from outside, an exit status."""
    return (event.standing is Standing.OUTSIDE and event.quality > 0) or is_bare_exit(event)


def beats(waited: Waited, root: Group, events: list[Event]) -> bool:
    """Whether the awaited ranks explain more than a signal, or a launcher's report of a rank's end."""
    if root.first.standing is Standing.ENDED:
        return waited.kind in NEVER_MET
    if not (waited.ranks or waited.hosts):
        return False
    waiting = {event.rank for event in events if event.standing is Standing.ABSENT and event.rank is not None}
    ended = set(root.ranks)
    only_it = bool(ended) and set(waited.ranks) <= ended and not ended & waiting
    return not only_it  # who got the signal alone, and waited for nobody, is what the others waited for


def find_first_unknown(job: Identities, events: list[Event]) -> Group | None:
    """The error that nothing in the catalogue explains, if alone or before all that others report."""
    own = [
        event
        for event in events
        if event.standing is Standing.UNKNOWN and not is_outlived_warning(job, event)
    ]
    if not own:
        return None
    own = [
        event for event in own if not event.is_cut
    ] or own  # an error shows more than a traceback without its end
    first = min(own, key=order_of)
    for event in events:
        if event.standing not in (Standing.ABSENT, Standing.ECHO):
            continue
        if first.is_cut:  # it shows nothing, and the other line at least what it followed from
            return None
        if event.topic in REPORTS or _is_mere_warning(event):
            continue
        same_log = event.log_number == first.log_number
        if event.at and first.at and event.is_exact and first.is_exact and event.at + SKEW < first.at:
            return None
        if same_log and event.line < first.line and event.rank == first.rank:
            return None
    return Group(tuple(sorted((event for event in own if event.shape == first.shape), key=order_of)))


def is_outlived_warning(job: Identities, event: Event) -> bool:
    """Whether an event is a warning that runs may outlive, with a step or the end of NCCL's init after it."""
    return _is_weak(event) and job.logs[event.log_number].facts.moved_after(max(event.line, event.last_line))


def _is_mere_warning(event: Event) -> bool:
    """Whether an event is a warning that runs may outlive: no error that comes after it follows from it."""
    return _is_weak(event) and event.topic != "nccl.warning" and read_level(event.text) is Level.WARNING


def _is_weak(event: Event) -> bool:
    return event.topic in failures() and failures()[event.topic].weak


def is_explained_by_absence(event: Event, events: list[Event]) -> bool:
    """Whether a rank that ended by SIGABRT only did what torch's watchdog does to a rank that waited."""
    is_abort = event.code == -6 or (
        event.topic == "rank.crashed" and event.code is None and _ABORTED.search(event.text) is not None
    )
    return is_abort and any(other.standing is Standing.ABSENT for other in events)


def choose(candidates: list[Event]) -> Group | None:
    """The group of events that came first.

    Clocks may differ, so that what is near in time is decided by its weight.
    """
    groups: dict[str, list[Event]] = defaultdict(list)
    outside = [event for event in candidates if event.standing is Standing.OUTSIDE]
    killed = sum(event.topic == "rank.killed" for event in candidates)
    has_reason = any(event.quality == 0 for event in outside) or (
        bool(outside) and 1 < killed >= len(candidates) - len(outside)
    )
    for event in candidates:
        if not (
            has_reason and event.topic == "rank.killed"
        ):  # a scheduler ends by SIGKILL what does not end by itself
            groups[event.shape].append(event)
    if not groups:
        return None
    found = [Group(tuple(sorted(events, key=order_of))) for events in groups.values()]
    attempt = min(group.first.attempt for group in found)
    found = [group for group in found if group.first.attempt == attempt]
    dated = [group.first.at for group in found if group.first.at]
    if dated:
        earliest = min(dated)
        found = [
            group
            for group in found
            if group.first.at is None or group.first.at <= earliest + _reach(group.first, found)
        ]
    return min(found, key=lambda group: _weight(group, found))


def _reach(event: Event, found: list[Group]) -> timedelta:
    """How much later than the earliest an event may be logged and still have come first."""
    first = min((group.first for group in found if group.first.at), key=order_of)
    if event.standing is Standing.OUTSIDE:
        return _GUESSED if first.standing is Standing.OUTSIDE else timedelta(seconds=1)
    if (
        event.standing is Standing.MACHINE
        and first.standing is not Standing.MACHINE
        and not (first.is_exact and event.host != first.host)
    ):
        return _GUESSED  # an exception has no time of its own: it stands under the last line that has one
    if event.log_number == first.log_number and event.is_exact and first.is_exact:
        return timedelta(0)
    return SKEW if event.is_exact and first.is_exact else _GUESSED


def _weight(group: Group, found: list[Group]) -> tuple[object, ...]:
    event = group.first
    is_abort = event.code == ABORT or (event.code is None and _ABORTED.search(event.text) is not None)
    is_own_end = event.standing is Standing.ENDED and event.quality == 0 and not is_abort
    # A process that aborts logs the reason before.
    standing = Standing.CAUSE if is_own_end else event.standing
    bare = [other for other in found if _is_report_of_link(other.first, found)]
    late = event.standing is Standing.LINK and len(found) - len(bare) > 1
    follows = failures()[event.topic].follows if event.topic in failures() else ()
    others = {other.first.topic for other in found if other is not group}
    # Ctrl-C is what a scheduler's own signal looks like from within.
    is_echo = (
        group in bare
        or any(topic in others for topic in follows)
        or (ANY_CAUSE in follows and bool(others - {"launch.interrupted"}))
    )
    several = len({other.first.log_number for other in found}) > 1
    quality = event.quality if several or event.quality > 1 else min(event.quality, 1)
    # In one log, where not all have a time, the order of its lines counts.
    at = event.at if several or all(other.first.at for other in found) else None
    clock = at.timestamp() if at is not None else 0.0
    return (is_echo, late, standing, quality, at is None, clock, event.log_number, event.line)


def _is_report_of_link(event: Event, found: list[Group]) -> bool:
    """Whether an exception without a frame only repeats an error of the network from before it in its log."""
    return (event.topic, event.where, event.code) == ("", "", None) and any(
        other.first.standing is Standing.LINK
        and other.first.log_number == event.log_number
        and other.first.line < event.line
        for other in found
    )


def order_of(event: Event) -> tuple[object, ...]:
    """What sorts events: by attempt, time, log and line; those without a time last."""
    return (
        event.attempt,
        event.at is None,
        event.at.timestamp() if event.at else 0.0,
        event.log_number,
        event.line,
    )


def is_after_error_of_nccl(root: Group, unknown: Group | None) -> bool:
    """Whether an error of NCCL that nothing explains comes before it."""
    return (
        unknown is not None
        and unknown.first.topic == "nccl.unhandled"
        and order_of(unknown.first) < order_of(root.first)
    )


def find_later(events: list[Event], root: Group) -> list[Group]:
    """Other faults, so much or so many attempts later that they do not follow from the first one."""
    groups: dict[str, list[Event]] = defaultdict(list)
    first = root.first
    for event in events:
        if (
            event.standing > Standing.CAUSE
            or event.quality > 1
            or event in root.events
            or event.shape == first.shape
        ):
            continue
        apart = (
            event.at - first.at > _APART
            if event.at and first.at and event.is_exact and first.is_exact and event.at.year == first.at.year
            else False
        )
        follows = failures()[event.topic].follows if event.topic in failures() else ()
        if (event.attempt > first.attempt or apart) and first.topic not in follows:
            groups[event.shape].append(event)
    return [Group(tuple(sorted(group, key=order_of))) for group in groups.values()][:_MOST_LATER]
