"""From what is known of every rank to what happened: pure, no clock, no process, no file.

The earliest failure is the cause. What other ranks say about a connection that it closed is a
consequence, and is never reported as an incident of its own. A hang is told apart by who is where:

    ranks entered different collectives          -> mismatched
    a rank's process is dead or stopped          -> died, stopped
    a rank raised an exception of its own        -> raised
    a rank has not entered what others wait in   -> silent
    everyone is inside and nothing moves         -> stalled
"""

import re
import signal
from collections.abc import Sequence
from dataclasses import replace

from gpudiag.model.evidence import Evidence
from gpudiag.model.measure import Incident, IncidentKind
from gpudiag.ranks import evidence, ruled_out
from gpudiag.ranks.mismatch import find_mismatch, is_mismatch_pending
from gpudiag.ranks.stages import Budgets, stall_limit_seconds
from gpudiag.ranks.view import Life, RankView

# After the first symptom, wait this long for those that came before it but were noticed later: a
# survivor may write down its broken connection before the dead rank's parent gets the processor.
SETTLE_SECONDS = 0.25
# A broken connection with nobody dead or raising: the cause may be on its way from another machine.
CONSEQUENCE_SETTLE_SECONDS = 1.0

# A rank that aborts may do so because another one sent it too little: see what the others entered.
ABORT_SETTLE_SECONDS = 0.6

# A stop is believed when it has lasted: debuggers and snapshots stop a process for a moment.
STOP_SECONDS = 0.3

# An agent reports ten times a second; one that has not for so long is hung, or its machine is.
UNHEARD_SECONDS = 2.0

# A rank that uses the processor is late, not silent; it gets more time. Waiting in NCCL spins, so
# ranks inside an operation get less of it.
BUSY_OUTSIDE_FACTOR = 10.0
BUSY_INSIDE_FACTOR = 3.0

# A rank that is further behind than another one, off the processor and not in uninterruptible sleep.
LEFT_BEHIND_SECONDS = 1.0

# What a rank says when another one is gone, by gloo, TCPStore and NCCL.
_CONSEQUENCE = re.compile(
    r"connection (closed|reset|refused)|closed by peer|reset by peer|broken pipe|socket closed"
    r"|(read|write) error|connectFullMesh|recvValue|sendBytes|recvBytes|failed to recv"
    r"|timed out waiting|wait timeout|remote process exited|unhandled system error",
    re.IGNORECASE,
)


def is_settled(views: Sequence[RankView], now: float) -> bool:
    """Whether the symptoms seen so far are old enough to tell cause from consequence; `now` as in the views."""
    if is_mismatch_pending(views):
        return False
    broken = _describe_all_broken(views)
    if not broken:
        return True
    if all(_is_consequence(incident, views) for incident in broken):
        patience = CONSEQUENCE_SETTLE_SECONDS
    elif any(view.exit == -signal.SIGABRT for view in views):
        patience = ABORT_SETTLE_SECONDS
    else:
        patience = SETTLE_SECONDS
    return now - min(incident.at_seconds for incident in broken) >= patience


def find_incidents(
    views: Sequence[RankView], budgets: Budgets, now: float, absent_after: float
) -> tuple[Incident, ...]:
    """What went wrong, the cause first; nothing while all is well or nobody has waited long enough.

    `absent_after` is when a rank that has not come up yet is taken not to come, as `now` is counted.

    Each with what has been ruled out on the way.
    """
    incidents = _find_causes(views, budgets, now, absent_after)
    return tuple(
        replace(incident, evidence=(*incident.evidence, *ruled_out.of_incident(incident, views)))
        for incident in incidents
    )


def _find_causes(
    views: Sequence[RankView], budgets: Budgets, now: float, absent_after: float
) -> tuple[Incident, ...]:
    """The incidents themselves.

    Different collectives explain every death and exception that follows; and a death, an exception
    or a stop explains every hang.
    """
    mismatch = find_mismatch(views)
    if mismatch:
        return mismatch
    broken = _describe_all_broken(views)
    if broken:
        causes = [incident for incident in broken if not _is_consequence(incident, views)]
        return tuple(causes) or broken[:1]
    absent = [view for view in views if view.life is Life.NOT_STARTED]
    return _describe_absent(absent, now, absent_after) if absent else _find_hang(views, budgets)


def _describe_all_broken(views: Sequence[RankView]) -> tuple[Incident, ...]:
    """An incident for every rank that died, raised, or was stopped or unheard for long enough; by time."""
    broken = [incident for incident in map(_describe_broken, views) if incident is not None]
    return tuple(sorted(broken, key=lambda incident: incident.at_seconds))


def _describe_broken(view: RankView) -> Incident | None:
    if view.life is Life.STOPPED and view.still_seconds >= STOP_SECONDS:
        return _incident(IncidentKind.STOPPED, view, view.changed_at, evidence.of_stop(view))
    if view.raised is not None:
        return _incident(IncidentKind.RAISED, view, view.raised.at, evidence.of_exception(view.raised))
    if view.life is Life.ENDED and not view.ended_well:
        return _incident(IncidentKind.DIED, view, view.changed_at, evidence.of_death(view))
    if view.unheard_seconds >= UNHEARD_SECONDS:
        return _incident(IncidentKind.SILENT, view, view.changed_at, evidence.of_unheard(view))
    return None


def _is_consequence(incident: Incident, views: Sequence[RankView]) -> bool:
    raised = next(view.raised for view in views if view.rank == incident.rank)
    return (
        incident.kind is IncidentKind.RAISED
        and raised is not None
        and bool(_CONSEQUENCE.search(raised.message))
    )


def _describe_absent(absent: Sequence[RankView], now: float, absent_after: float) -> tuple[Incident, ...]:
    """Ranks that never came up; nothing while they still may."""
    if now < absent_after:
        return ()
    return tuple(_incident(IncidentKind.NOT_STARTED, view, now, evidence.of_absence(now)) for view in absent)


def _find_hang(views: Sequence[RankView], budgets: Budgets) -> tuple[Incident, ...]:
    """The ranks that the others wait for, or all of them where nobody is behind."""
    if any(view.unheard_seconds for view in views):
        return ()  # what is known of that rank is old; its agent speaks again, or is soon taken as hung
    overdue = [view for view in views if view.running and view.still_seconds > _limit_seconds(view, budgets)]
    if not overdue:
        return _find_left_behind(views)
    inside = [view for view in overdue if view.inside]
    if inside:
        return _blame_for_operation(views, overdue, min(inside, key=lambda view: view.entered))
    return _blame_for_stage(views)


def _limit_seconds(view: RankView, budgets: Budgets) -> float:
    if view.predicted_seconds is None:
        return budgets.seconds_for(view.stage)
    limit = stall_limit_seconds(view.predicted_seconds)
    return limit * BUSY_INSIDE_FACTOR if view.busy else limit


def _blame_for_operation(
    views: Sequence[RankView], overdue: Sequence[RankView], waiting: RankView
) -> tuple[Incident, ...]:
    """Who has not entered the collective that `waiting` is in; where nobody has not, it is stalled."""
    absent = [view for view in views if view.entered < waiting.entered]
    if not absent:
        inside = [view for view in views if view.inside and view.entered == waiting.entered]
        arrived_late = any(view not in overdue for view in inside)
        return () if arrived_late else (_stalled(inside[0], inside),)
    if any(view.busy and view.still_seconds < _busy_limit_seconds(waiting) for view in absent):
        return ()
    return tuple(_silent(view, waiting) for view in absent)


def _busy_limit_seconds(waiting: RankView) -> float:
    return BUSY_OUTSIDE_FACTOR * stall_limit_seconds(waiting.predicted_seconds or 0.0)


def _blame_for_stage(views: Sequence[RankView]) -> tuple[Incident, ...]:
    """The ranks in the earliest stage, where others are further; where none is further, all of them."""
    running = [view for view in views if view.running]
    earliest = min(view.stage_count for view in running)
    behind = [view for view in running if view.stage_count == earliest]
    further = [view for view in views if view.stage_count > earliest]
    if further:
        return tuple(_silent(view, further[0]) for view in behind)
    return (_stalled(behind[0], behind),)


def _find_left_behind(views: Sequence[RankView]) -> tuple[Incident, ...]:
    """Ranks that have not come where another one waits for them, while they plainly do nothing.

    Where it is known how long the waiting may take, that decides instead.
    """
    furthest = max(view.progress for view in views)
    waiting = max(
        (view for view in views if view.progress == furthest), key=lambda view: view.waiting_seconds
    )
    if waiting.waiting_seconds < LEFT_BEHIND_SECONDS or waiting.predicted_seconds is not None:
        return ()
    behind = [view for view in views if view.running and view.progress < furthest]
    idle = all(view.still_seconds >= LEFT_BEHIND_SECONDS and not view.inside for view in behind)
    working = any(view.busy or view.opening_gpu or view.process_state == "D" for view in behind)
    return tuple(_silent(view, waiting) for view in behind) if idle and not working else ()


def _silent(view: RankView, waiting: RankView) -> Incident:
    at = view.seen_at - view.still_seconds
    return _incident(IncidentKind.SILENT, view, at, evidence.of_silence(view, waiting))


def _stalled(view: RankView, together: Sequence[RankView]) -> Incident:
    ranks = [member.rank for member in together]
    return _incident(
        IncidentKind.STALLED, view, view.seen_at - view.still_seconds, evidence.of_stall(view, ranks)
    )


def _incident(kind: IncidentKind, view: RankView, at: float, facts: tuple[Evidence, ...]) -> Incident:
    return Incident(
        kind=kind,
        rank=view.rank,
        host=view.host,
        stage=view.stage,
        at_seconds=max(0.0, at),
        evidence=(*facts, *evidence.of_position(view), *view.traces),
    )
