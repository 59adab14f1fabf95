"""Jobs whose ranks get work from a server: which ranks wait for it, if the job is idle, who holds it up.

A rank that waits for its next request stands still by nature, at a pipe, a socket or in a loop over shared
memory. So does a process by itself that is a server, or a notebook.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpudiag.checks.job import activity as at
from gpudiag.checks.job import kinds
from gpudiag.checks.job.facts import facts_of, subject_of
from gpudiag.checks.job.groups import (
    Group,
    describe,
    describe_seconds,
    group_alike,
    is_are,
    name_positions,
    peers_of,
)
from gpudiag.checks.job.hang_limits import HangLimits
from gpudiag.checks.job.loops import find_loop
from gpudiag.checks.job.position import Position, find_position
from gpudiag.model.evidence import HostSubject
from gpudiag.model.finding import Finding
from gpudiag.model.job import ALONE, SERVER, Frame, Job, Place
from gpudiag.model.reading import NOT_ASKED
from gpudiag.reference.stacks import changed_counters
from gpudiag.reference.waits import RANKS, find_wait

_NOT_FOR_WORK = frozenset((at.GONE, at.UNSEEN, at.STOPPED, at.DEBUGGER, at.TERMINAL))
_LOOPS = frozenset((at.SLEEP, at.PYTHON, at.WAITS))  # what a loop that looks for work is seen as
# How ZMQ and Ray's core wait: for an eventfd, which does not show who is at its other end.
_POLLS = ("poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait", "epoll_pwait2")
_OF_PYTHON = re.compile(r"/lib(64)?/python\d[^/]*/(?!(site|dist)-packages)|^<")
_LOOKS_PER_SECOND = 5.0  # our choice: vLLM's ring sleeps for 0.1 s at most, and most spin
# What a server waits in that asks another one, as for a model's files; one that is asked itself is in
# selectors or socketserver.
_ASKS = re.compile(r"/http/client\.py$|/urllib3/|/requests/|/huggingface_hub/|/botocore/")
# What waits for connections, or for a user's next line.
_FOR_USERS = re.compile(r"/(socketserver|code)\.py$|/(IPython|ipykernel|uvicorn|tornado|gunicorn|hypercorn)/")
# Collectives by which one rank gives the others what to do, as SGLang's scheduler does with its requests.
_GIVES = frozenset(("broadcast", "broadcast_object_list", "scatter", "scatter_object_list"))
_NO_WAIT_FOR_REQUESTS = frozenset((at.FILE, at.DATABASE))


@dataclass(frozen=True, slots=True)
class Served:
    """What is found of a job of which ranks wait for work; `headline` where nothing is."""

    findings: tuple[Finding, ...]
    headline: str = ""


def mark_work_waits(positions: Sequence[Position], job: Job) -> tuple[Position, ...]:
    """The positions, with waits for a server's work as such; not those for an own child or thread."""
    if not job.servers:
        alone = len(positions) == 1 and job.launcher == ALONE
        return tuple(_for_work(one) if alone and _serves_users(one) else one for one in positions)
    waiting = [one for one in positions if _may_wait_for_work(one)]
    alike = Counter(one.where for one in waiting)
    marked = {one.seen.pid for one in waiting if not one.inner or alike[one.where] > 1}
    return tuple(_for_work(one) if one.seen.pid in marked else one for one in positions)


def _serves_users(one: Position) -> bool:
    """Whether a lone process waits for somebody: for a connection, or at a prompt of a notebook or Python."""
    main = one.seen.last.main
    if main is None or one.moves or one.busy or one.kind in (at.GONE, at.UNSEEN, at.STOPPED, at.DEBUGGER):
        return False
    kind = main.awaited.kind if main.awaited is not None else ""
    prompt = not main.frames and kind == "terminal"
    return kind == "listener" or prompt or any(_FOR_USERS.search(frame.file) for frame in one.call.library)


def _may_wait_for_work(one: Position) -> bool:
    if one.kind in _NOT_FOR_WORK or one.call.awaited == RANKS:
        return False
    main = one.seen.last.main
    if one.kind == at.QUEUE or main is None:
        return one.kind == at.QUEUE
    if _is_in_a_queue(main.frames):
        return True
    if one.kind == at.WAITS:
        return main.syscall in _POLLS and (main.awaited is None or main.awaited.kind == "other")
    return one.kind in _LOOPS and _looks_in_a_loop(one)


def _is_in_a_queue(frames: Sequence[Frame]) -> bool:
    """Whether the innermost frame beyond Python's waits for a message: ZMQ, vLLM's ring, Ray's loop."""
    for frame in frames:
        if find_wait([(frame.file, frame.function.rpartition(".")[2])], at.QUEUE) is not None:
            return True
        if not _OF_PYTHON.search(frame.file):
            return False
    return False


def _looks_in_a_loop(one: Position) -> bool:
    """Whether all looks found a rank in a loop in which nothing moves or is read: it looks for work.

    One that sleeps for longer waits for something else: no request may wait.
    """
    looks = [look for look in one.seen.looks if look.main is not None]
    if len(looks) < 2 or not find_loop(looks, one.seen.pid):
        return False
    mains = [look.main for look in looks if look.main is not None]
    if changed_counters(mains[0].frames, mains[-1].frames):
        return False
    times = (mains[-1].switches - mains[0].switches) / max(0.1, looks[-1].at_seconds - looks[0].at_seconds)
    return one.busy or times >= _LOOKS_PER_SECOND


def _for_work(one: Position) -> Position:
    """The position as that of a rank that waits for work: what moves of it is the looking."""
    between = one.seen.last.at_seconds - one.seen.first.at_seconds
    looks = one.kind in _LOOPS or one.moves or one.busy
    since = max(one.since_seconds or 0.0, between) if looks else one.since_seconds
    return replace(
        one, kind=at.WORK, words="waits for work", moves=False, busy=False, since_seconds=since, in_loop=""
    )


def judge_served(job: Job, positions: Sequence[Position], limits: HangLimits) -> Served | None:
    """What is found where ranks wait for work, and no rank for another; None for all other jobs.

    A rank that waits for work while others wait for it in a collective left that out: then the usual rules
    hold, unless it gives the others their work by it.
    """
    work = [one for one in positions if one.kind == at.WORK]
    meeting = [one for one in positions if one.waits_for_ranks or one.waits_for_gpu]
    others = [one for one in positions if one not in work and one not in meeting]
    if not work or any(one.kind in _NOT_FOR_WORK for one in others):
        return None
    if meeting and (others or not all(_is_given_work(one, work) for one in meeting)):
        return None
    if not others:
        return _judge_idle(job, positions, work, limits)
    moving = [one for one in others if one.moves or one.busy]
    still = [one for one in others if one not in moving]
    findings = tuple(
        finding
        for group in group_alike(still)
        if not moving and (finding := _judge_other(job, group, work, limits)) is not None
    )
    head = moving or still
    first = f"{name_positions(head)} {is_are(head, 'works' if moving else head[0].words)}"
    return Served(findings, f"not hanging: {first}, and {_name_waits(work)}")


def _is_given_work(one: Position, work: Sequence[Position]) -> bool:
    """Whether a rank waits in a collective for what one of those ranks gives it to do."""
    roots = {value for name, value in peers_of(one) if name in ("src", "group_src")}
    return one.call.operation in _GIVES and bool(roots & {str(giver.rank) for giver in work})


def _judge_other(job: Job, group: Group, work: Sequence[Position], limits: HangLimits) -> Finding | None:
    """The finding for ranks that stand still in their own work while others are ready; None: no news."""
    head = group.head
    known = [one for one in (group.since_seconds, head.inner_since_seconds) if one is not None]
    still = max(known) if known else 0.0
    if still < limits.news:
        return None
    long = still >= (max(limits.alone, limits.disk) if head.on_disk else limits.alone)
    kind = kinds.OF_POSITION.get(head.kind, kinds.WAITS) if long else kinds.NOT_YET
    limit = "" if long else f"; it is called a hang after {limits.alone:g} s"
    message = f"{describe(group)} for {describe_seconds(still)}, while {_name_waits(work)}{limit}"
    return kind.finding(subject_of(group, job), message, *facts_of(group), *facts_of(Group(tuple(work))))


def _judge_idle(
    job: Job, positions: Sequence[Position], work: Sequence[Position], limits: HangLimits
) -> Served:
    """The verdict on a job whose ranks are all ready: its server has no requests, works, or stands still."""
    servers = [find_position(one, job) for one in job.servers]
    findings = [found for one in servers if (found := _judge_server(job, one, work, limits)) is not None]
    if findings:
        return Served(tuple(findings))
    working = next((one for one in servers if one.moves and one.kind not in (at.QUEUE, at.NETWORK)), None)
    if working is not None:
        return Served((), f"not hanging: {_name_server(working)} works, and {_name_waits(positions)}")
    recent = any((one.since_seconds or limits.news) < limits.news for one in work)
    if recent:
        return Served((), f"not hanging: {_name_waits(positions)}, and had some within the last second")
    return Served((), f"idle: waits for requests; {_name_waits(positions)}")


def _judge_server(job: Job, one: Position, work: Sequence[Position], limits: HangLimits) -> Finding | None:
    """The finding for a server that is held, or stands still by itself, with all ranks ready."""
    main = one.seen.last.main
    on_file = one.call.own is not None and main is not None and main.syscall in at.FILE_LOCKS
    held = one.kind in (at.STOPPED, at.DEBUGGER)
    asks = one.kind == at.NETWORK and any(_ASKS.search(frame.file) for frame in one.call.library)
    if one.moves or one.busy or not (held or on_file or asks or one.kind in _NO_WAIT_FOR_REQUESTS):
        return None
    still = one.since_seconds or 0.0
    long = held or still >= limits.idle
    if not long and still < limits.news:
        return None
    kind = kinds.OF_POSITION[one.kind] if long else kinds.NOT_YET
    where = f" at {one.where}" if one.where else ""
    since = "" if held else f" for {describe_seconds(still)}"
    limit = "" if long else f"; it is called a hang after {limits.idle:g} s"
    message = f"{_name_server(one)} {one.words}{where}{since}, and {_name_waits(work)}{limit}"
    return kind.finding(HostSubject(job.host), message, *facts_of(Group((one,))))


def _name_server(one: Position) -> str:
    return f"the server, pid {one.seen.pid},"


def _name_waits(positions: Sequence[Position]) -> str:
    """`ranks 0, 1 and 3 wait for work at engine.py:40 in next_request`."""
    work = [one for one in positions if one.kind == at.WORK]
    lines = list(dict.fromkeys(one.where for one in work if one.where))[:2]
    where = f" at {' and '.join(lines)}" if lines else ""
    return f"{name_positions(positions)} {is_are(positions, 'waits for work')}{where}"


def places_of_servers(job: Job) -> tuple[Place, ...]:
    """Where the job's servers are, for people and programs."""
    places = []
    for one in (find_position(server, job) for server in job.servers):
        since = one.since_seconds
        places.append(
            Place(
                (),
                SERVER,
                one.words,
                one.where,
                since_seconds=NOT_ASKED if since is None else round(since, 1),
                moves=one.moves,
                busy=one.busy,
                pids=(one.seen.pid,),
            )
        )
    return tuple(places)
