"""Decide what happened from what is known of every rank: pure, no clock, no process, no file.

The earliest failure is the cause. Errors of other ranks about a connection that it closed are
consequences, and never reported as incidents of their own. Hangs are classified by where ranks are:

    ranks entered different collectives          -> mismatched
    a rank's process is dead or stopped          -> died, stopped
    a rank raised an exception of its own        -> raised
    a rank has ended well, and others need it    -> ended
    a rank has not entered what others wait in   -> silent
    everyone is inside and nothing moves         -> stalled

What is found without patience is a suspicion: a stop and a hang may heal. What has outlasted the run's
`Patience` is certain. Time limits grow with the load of the hosts (host_load.py).
"""

import re
import signal
from collections.abc import Sequence
from dataclasses import replace

from gpudiag.model.evidence import Evidence
from gpudiag.model.measure import Incident, IncidentKind
from gpudiag.ranks.diagnosis import evidence, ruled_out
from gpudiag.ranks.diagnosis.mismatch import find_mismatch, is_mismatch_pending
from gpudiag.ranks.diagnosis.view import Life, RankView
from gpudiag.ranks.stages import NONE, RENDEZVOUS, Budgets, Patience, stall_limit_seconds

# After the first symptom, wait this long for symptoms that came before it but are noticed later: a
# survivor may report its broken connection before the dead rank's parent gets the processor.
SETTLE_SECONDS = 0.25
# Only broken connections, no rank dead or raising: the cause may be on its way from another machine.
CONSEQUENCE_SETTLE_SECONDS = 1.0

# A rank that aborts may do so because another one sent it too little: see what the others entered.
ABORT_SETTLE_SECONDS = 0.6

# How long a stop must last to count: debuggers and snapshots stop a process for a moment.
STOP_SECONDS = 0.3

# An agent reports ten times a second; one that has not for this long is hung, or its machine is.
SILENT_SECONDS = 1.5

# A rank that uses the processor is late, not silent; it gets more time. Waiting in NCCL spins, so
# ranks inside an operation get less of it.
BUSY_OUTSIDE_FACTOR = 10.0
BUSY_INSIDE_FACTOR = 3.0

# How long a rank may be behind another one without using the processor.
LEFT_BEHIND_SECONDS = 1.0
# A rank throttled by a quota does make progress, perhaps a hundred times too slowly: certain after this long.
THROTTLED_SECONDS = 15.0

# A slow file system, or a driver, may keep a healthy process in uninterruptible sleep this long.
UNINTERRUPTIBLE_SECONDS = 30.0

# A stopped process may be continued, and a late one may arrive.
_MAY_HEAL = frozenset({IncidentKind.STOPPED, IncidentKind.SILENT, IncidentKind.STALLED})

# Error messages of gloo, TCPStore and NCCL when another rank is gone.
_CONSEQUENCE = re.compile(
    r"connection (closed|reset|refused)|closed by peer|reset by peer|broken pipe|socket closed"
    r"|(read|write) error|connectFullMesh|recvValue|sendBytes|recvBytes|failed to recv"
    r"|timed out waiting|wait timeout|remote process exited|unhandled system error"
    r"|(connect|recv|send)\w* (timeout|timed out)|network is unreachable|no route to host",
    re.IGNORECASE,
)


def find_throttled(views: Sequence[RankView], reported: Sequence[Incident]) -> tuple[Incident, ...]:
    """Ranks that a quota throttles and that are not in `reported`; none if it throttles all ranks."""
    ranks = {incident.rank for incident in reported}
    held = [view for view in views if view.throttled]
    if len(held) == len(views):
        return ()
    return tuple(
        _incident(IncidentKind.THROTTLED, view, view.changed_at, evidence.of_quota(view))
        for view in held
        if view.rank not in ranks
    )


def is_settled(views: Sequence[RankView], now: float) -> bool:
    """Whether symptoms are old enough to show the cause; `now` is on the views' clock.

    On a loaded host the rank that raised first may report later than those that lost it.
    """
    if is_mismatch_pending(views):
        return False
    broken = [one for one in _describe_all_broken(views, NONE) if one.kind not in _MAY_HEAL]
    if not broken:
        return True
    if all(map(is_consequence, broken)):
        patience = CONSEQUENCE_SETTLE_SECONDS
    elif any(view.exit == -signal.SIGABRT for view in views):
        patience = ABORT_SETTLE_SECONDS
    else:
        patience = SETTLE_SECONDS
    return now - min(incident.at_seconds for incident in broken) >= patience * load_of(views)


def find_incidents(
    views: Sequence[RankView],
    budgets: Budgets,
    now: float,
    absent_after: float,
    patience: Patience = NONE,
) -> tuple[Incident, ...]:
    """What went wrong, the cause first, with what has been ruled out; empty while no limit has passed.

    `now`: when the views were taken; `absent_after`: when ranks must be up. What may heal must outlast
    `patience`.
    """
    ruined = any(view.raised is not None or _ended_badly(view) for view in views)
    incidents = _find_causes(views, budgets, now, absent_after, NONE if ruined else patience)
    return tuple(
        replace(incident, evidence=(*incident.evidence, *ruled_out.of_incident(incident, views)))
        for incident in incidents
    )


def _find_causes(
    views: Sequence[RankView], budgets: Budgets, now: float, absent_after: float, patience: Patience
) -> tuple[Incident, ...]:
    """The incidents, without what has been ruled out.

    Different collectives explain deaths and exceptions; a death, an exception or a stop explains every hang.
    """
    mismatch = find_mismatch(views)
    if mismatch:
        return mismatch
    broken = _describe_all_broken(views, patience)
    if broken:
        causes = [incident for incident in broken if not is_consequence(incident)]
        return tuple(causes) or _describe_early_ends(broken, views) or broken[:1]
    if _describe_all_broken(views, NONE):
        return ()  # a stop, or silence, that may still heal explains any hang
    absent = [view for view in views if view.life is Life.NOT_STARTED]
    if absent:
        # Where its agent has come the rank is on its way: the agent limits how long an import may take.
        return _describe_absent([view for view in absent if not view.agent_came], now, absent_after)
    return _find_hang(views, budgets, patience) or _find_held_back(views, patience)


def _find_held_back(views: Sequence[RankView], patience: Patience) -> tuple[Incident, ...]:
    """Ranks that others wait for and that a quota has throttled most of the time, for long enough."""
    held = [view for view in views if view.running and view.throttled]
    waiting = max((view for view in views if view not in held), key=lambda view: view.progress, default=None)
    limit = THROTTLED_SECONDS + patience.behind_seconds
    if waiting is None or not waiting.inside:
        return ()
    return tuple(_silent(view, waiting) for view in held if view.quota and view.quota.seconds >= limit)


def _describe_all_broken(views: Sequence[RankView], patience: Patience) -> tuple[Incident, ...]:
    """An incident for every rank that died, raised, or was stopped or silent for long enough; by time."""
    found = (_describe_broken(view, patience) for view in views)
    return tuple(sorted(filter(None, found), key=lambda incident: incident.at_seconds))


def _ended_badly(view: RankView) -> bool:
    return view.life is Life.ENDED and not view.ended_well


def _describe_broken(view: RankView, patience: Patience) -> Incident | None:
    # What stopped it also needs the processor to continue it.
    stop_seconds = STOP_SECONDS + patience.stopped_seconds * view.load
    if view.life is Life.STOPPED and view.still_seconds >= stop_seconds:
        return _incident(IncidentKind.STOPPED, view, view.changed_at, evidence.of_stop(view))
    if view.raised is not None:
        return _incident(IncidentKind.RAISED, view, view.raised.at, evidence.of_exception(view.raised))
    if _ended_badly(view):
        return _incident(IncidentKind.DIED, view, view.changed_at, evidence.of_death(view))
    if view.silent_seconds >= SILENT_SECONDS + patience.silent_seconds:
        return _incident(IncidentKind.SILENT, view, view.changed_at, evidence.of_silent_agent(view))
    return None


def is_consequence(incident: Incident) -> bool:
    """Whether it is an exception about a connection to another rank, which has its cause there or between."""
    message = next((str(fact.value) for fact in incident.evidence if fact.name == "message"), "")
    return incident.kind is IncidentKind.RAISED and bool(_CONSEQUENCE.search(message))


def _describe_early_ends(broken: Sequence[Incident], views: Sequence[RankView]) -> tuple[Incident, ...]:
    """Ranks that had returned their result when the first rank that still needed them lost its connection."""
    raisers = [view for view in views if view.raised is not None and not view.finished]
    if not raisers:
        return ()
    early = [view for view in views if view.finished and view.finished_at <= broken[0].at_seconds]
    early.sort(key=lambda view: view.finished_at)
    return tuple(_ended(view, raisers[0]) for view in early)


def _describe_absent(absent: Sequence[RankView], now: float, absent_after: float) -> tuple[Incident, ...]:
    """Ranks that never came up; empty before the deadline."""
    if now < absent_after:
        return ()
    return tuple(_incident(IncidentKind.NOT_STARTED, view, now, evidence.of_absence(now)) for view in absent)


def _find_hang(views: Sequence[RankView], budgets: Budgets, patience: Patience) -> tuple[Incident, ...]:
    """The ranks that the others wait for, or all of them if none is behind."""
    if any(view.silent_seconds for view in views):
        return ()  # that rank's view is stale; its agent reports again, or soon counts as hung
    overdue = [
        view for view in views if view.running and view.still_seconds > _limit_seconds(view, budgets, views)
    ]
    if not overdue:
        return _find_left_behind(views, patience)
    inside = [view for view in overdue if view.inside]
    if inside:
        return _blame_for_operation(views, budgets, min(inside, key=lambda view: view.entered), patience)
    grace = patience.behind_seconds
    lasted = any(view.still_seconds > _limit_seconds(view, budgets, views) + grace for view in overdue)
    return _blame_for_stage(views, budgets) if lasted else ()


def load_of(views: Sequence[RankView]) -> float:
    """The load of the most loaded host, since the other ranks wait for those there; 1 without views."""
    return max((view.load for view in views), default=1.0)


def _limit_seconds(view: RankView, budgets: Budgets, views: Sequence[RankView]) -> float:
    if view.predicted_seconds is None:
        return budgets.seconds_for(view.stage)
    limit = stall_limit_seconds(view.predicted_seconds) * load_of(views)
    return limit * BUSY_INSIDE_FACTOR if view.busy else limit


def _blame_for_operation(
    views: Sequence[RankView], budgets: Budgets, waiting: RankView, patience: Patience
) -> tuple[Incident, ...]:
    """The ranks that are not in the collective of `waiting`, nor in an earlier one; else a stall."""
    outside = [view for view in views if view.entered < waiting.entered and not view.inside]
    if not outside:
        return _judge_stall(views, budgets, patience)
    gone = [view for view in outside if view.finished]
    if gone:
        return tuple(_ended(view, waiting) for view in sorted(gone, key=lambda view: view.finished_at))
    limit = stall_limit_seconds(waiting.predicted_seconds or 0.0) * load_of(views)
    if any(view.busy and view.still_seconds < BUSY_OUTSIDE_FACTOR * limit for view in outside):
        return ()
    lasted = limit + patience.behind_seconds
    if any(view.still_seconds < lasted for view in (waiting, *outside)):
        return ()  # ranks that stopped moving only just now may be on their way
    return tuple(_silent(view, waiting) for view in outside)


def _judge_stall(views: Sequence[RankView], budgets: Budgets, patience: Patience) -> tuple[Incident, ...]:
    """No rank is outside: once all have made no progress for long, those in local work, or else a stall."""
    inside = [view for view in views if view.inside]
    grace = patience.inside_seconds
    lasted = all(view.still_seconds > _limit_seconds(view, budgets, views) + grace for view in inside)
    if not lasted:
        return ()
    furthest = max(inside, key=lambda view: view.entered)
    stuck = [view for view in inside if view.alone and view.entered < furthest.entered]
    return tuple(_silent(view, furthest) for view in stuck) or (_stalled(inside[0], inside),)


def _blame_for_stage(views: Sequence[RankView], budgets: Budgets) -> tuple[Incident, ...]:
    """The ranks in the earliest stage: silent if others are further, else stalled; none that may connect."""
    running = [view for view in views if view.running]
    earliest = min(view.stage_count for view in running)
    behind = _without_server([view for view in running if view.stage_count == earliest])
    longest = budgets.seconds_for(RENDEZVOUS)
    if any(view.connecting and view.still_seconds <= longest for view in behind):
        return ()
    further = [view for view in views if view.stage_count > earliest or view.ended_well]
    if further:
        return tuple(_silent(view, further[0]) for view in behind)
    return (_stalled(behind[0], behind),)


def _find_left_behind(views: Sequence[RankView], patience: Patience) -> tuple[Incident, ...]:
    """Ranks that have not reached the point where another one waits for them, and are idle.

    Empty with a predicted duration, which decides. Not those that connect: torch waits between tries.
    """
    furthest = max(view.progress for view in views)
    waiting = max(
        (view for view in views if view.progress == furthest), key=lambda view: view.waiting_seconds
    )
    limit = LEFT_BEHIND_SECONDS * load_of(views) + patience.behind_seconds
    if waiting.waiting_seconds < limit or waiting.predicted_seconds is not None:
        return ()
    behind = _without_server([view for view in views if view.running and view.progress < furthest])
    behind = [view for view in behind if not view.connecting]
    idle = all(view.still_seconds >= limit and not view.inside for view in behind)
    working = any(view.busy or view.opening_gpu or _may_be_served(view) for view in behind)
    return tuple(_silent(view, waiting) for view in behind) if idle and not working else ()


def _without_server(behind: Sequence[RankView]) -> list[RankView]:
    """Those views, without rank 0's if it serves the rendezvous and waits there too."""
    others = [view for view in behind if view.rank != 0]
    waits = any(view.connecting or view.stage != RENDEZVOUS for view in others)
    return [view for view in behind if view.rank != 0 or view.stage != RENDEZVOUS or not waits]


def _may_be_served(view: RankView) -> bool:
    """Whether the kernel may still be serving a request of the rank's process."""
    return view.process_state == "D" and view.still_seconds < UNINTERRUPTIBLE_SECONDS


def _ended(view: RankView, waiting: RankView) -> Incident:
    return _incident(IncidentKind.ENDED, view, view.finished_at, evidence.of_early_end(view, waiting))


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
