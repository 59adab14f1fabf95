"""Processes that stand still in something of their own while others move; nobody waits for them in a call.

A job without collectives, as a sweep with one trial on each rank, has no other sign; nor has a trial that a
rank runs in a process beside its own training. A rank in a queue, in a sleep, or that waits for a connection
or a thread may be there for what others send it: it is left alone.
"""

from collections.abc import Sequence
from dataclasses import replace

from gpudiag.checks.job import activity as at
from gpudiag.checks.job import kinds
from gpudiag.checks.job.activity import FILE_LOCKS, SAVES
from gpudiag.checks.job.facts import facts_of, remedy_of, subject_of
from gpudiag.checks.job.groups import Group, describe, describe_seconds, group_alike, name_positions
from gpudiag.checks.job.hang_limits import HangLimits
from gpudiag.checks.job.inner_waits import is_idle
from gpudiag.checks.job.position import Position, find_position
from gpudiag.checks.job.subgroups import JOINS
from gpudiag.model.finding import Finding
from gpudiag.model.job import ChildSeen, Job, KnownBy, ProcessLook, RankSeen
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.reference.stacks import own_frames, since_fork
from gpudiag.reference.waits import COMPILER, GROUP_THREADS, RANKS

# In these a rank waits for its own work, and serves nobody.
_OWN_WORK = frozenset((at.FILE, at.DATABASE, at.CHECKPOINT, at.LOADER, COMPILER))
# In these too, one that has a process group or runs layers: it trains.
_OF_TRAINING = frozenset((at.LOCK, at.NETWORK, RANKS))
_HELD = frozenset((at.STOPPED, at.DEBUGGER))
_LAYERS = ("/torch/nn/", "/torch/optim/", "/torch/autograd/", "_engine_run_backward")
_FOR_RANK = ("/_utils/worker.py", "/torch/distributed/checkpoint/")  # a loader's worker; async_save's process
_NO_RANK: Missing = Missing(MissingReason.NOT_SUPPORTED, "its rank started it, and it is none")


def judge_bystanders(job: Job, positions: Sequence[Position], limits: HangLimits) -> tuple[Finding, ...]:
    """The findings for ranks, and for what they started, that stand still in their own work beside others.

    There are none where no rank moves.
    """
    moving = [one for one in positions if one.moves and one.behind is None]
    if not moving:
        return ()
    found = (
        *(_judge(job, group, moving, limits) for group in group_alike(filter(_stands_still, positions))),
        *(
            _judge_started(job, group, rank, limits)
            for rank in positions
            for group in group_alike(_find_own_work(rank, job))
        ),
    )
    return tuple(finding for finding in found if finding is not None)


def _stands_still(one: Position) -> bool:
    return not (one.moves or one.busy or one.polls) and (one.kind in _OWN_WORK or _is_at_file_lock(one))


def _is_at_file_lock(one: Position) -> bool:
    main = one.seen.last.main
    if one.kind != at.LOCK or main is None:
        return False
    return main.syscall in FILE_LOCKS or (main.awaited is not None and main.awaited.kind == "lock file")


def _find_own_work(rank: Position, job: Job) -> list[Position]:
    """The processes that a rank started, and that stand still in work of their own, as trials do.

    Others are there for what the rank gives them, or has them do: a loader's worker, a server, a monitor, who
    writes a checkpoint.
    """
    positions = (find_position(_as_seen(child, rank), job) for child in rank.seen.children if child.looks)
    return [one for one in positions if _has_own_work(one) and _is_held_up(one)]


def _as_seen(child: ChildSeen, rank: Position) -> RankSeen:
    return RankSeen(
        child.pid,
        _NO_RANK,
        _NO_RANK,
        KnownBy.NOTHING,
        child.command,
        0.0,
        looks=tuple(_since_start(look) for look in child.looks),
        children=tuple(one for one in rank.seen.children if one.parent_pid == child.pid),
        host=rank.seen.host,
    )


def _since_start(look: ProcessLook) -> ProcessLook:
    threads = (
        replace(thread, frames=since_fork(thread.frames)) if thread.tid == look.pid else thread
        for thread in look.threads
    )
    return replace(look, threads=tuple(threads))


def _has_own_work(one: Position) -> bool:
    """Whether a process runs the user's code, and none that only works for its rank."""
    own = own_frames(one.frames)
    if not own or own[0].file.startswith("<") or any(is_idle(frame) for frame in one.call.library):
        return False
    return not (
        any(mark in frame.file for frame in one.frames for mark in _FOR_RANK)
        or any(SAVES.search(frame.function.rpartition(".")[2]) for frame in own)
    )


def _is_held_up(one: Position) -> bool:
    """Whether a process stands still in what nobody has to send it; of one that trains, in any wait."""
    if one.moves or one.busy or one.polls or one.kind == at.CHECKPOINT:
        return False
    awaited = one.seen.last.main.awaited if one.seen.last.main is not None else None
    serves = awaited is not None and awaited.kind == "listener"
    trains = _trains(one) or one.call.operation in JOINS
    return one.kind in _HELD or _stands_still(one) or (one.kind in _OF_TRAINING and trains and not serves)


def _trains(one: Position) -> bool:
    """Whether a process has a process group of its own, or is in a layer or in an optimizer's step."""
    in_layers = any(mark in frame.file + frame.function for frame in one.frames for mark in _LAYERS)
    return in_layers or any(thread.name.startswith(GROUP_THREADS) for thread in one.seen.last.threads)


def _judge_started(job: Job, group: Group, rank: Position, limits: HangLimits) -> Finding | None:
    """The finding for processes that a rank started; a hang where they train, and stand still for long."""
    since = max(group.since_seconds or 0.0, group.head.inner_since_seconds or 0.0)
    limit = limits.disk if group.head.inner_kind in at.MAY_BE_SLOW else limits.alone
    if group.head.kind == RANKS:  # the rest of its group may work, or still be starting
        limit = limits.absent if group.head.call.operation in JOINS else limits.work
    if since < limit:
        return None
    does = describe(Group((rank,))).removeprefix(f"{name_positions([rank])} ")
    message = (
        f"{describe(group)}, {describe_seconds(since)} so far, and no rank waits for {_them(group)} in a"
        f" collective; {name_positions([rank])}, which started {_them(group)}, {does}"
    )
    kind = kinds.OF_POSITION.get(group.head.kind, kinds.NOT_YET)
    if since < limits.work or not _trains(group.head):
        kind = kinds.NOT_YET
        message += _limit_of(limits) if _trains(group.head) else ""
    return kind.finding(subject_of(Group((rank,)), job), message, *facts_of(group), remedy=remedy_of(group))


def _them(group: Group) -> str:
    return "it" if len(group.positions) == 1 else "them"


def _limit_of(limits: HangLimits) -> str:
    return f"; after {limits.work:g} s ({limits.work_flag}) it is called a hang"


def _judge(job: Job, group: Group, moving: Sequence[Position], limits: HangLimits) -> Finding | None:
    since = max(group.since_seconds or 0.0, group.head.inner_since_seconds or 0.0)
    if since < (limits.news if group.head.kind == COMPILER else limits.alone):
        return None
    others = "; ".join(describe(one) for one in group_alike(moving)[-2:])
    message = (
        f"{describe(group)}, {describe_seconds(since)} so far, while {others};"
        f" no rank waits for {_them(group)} in a collective"
    )
    kind = kinds.OF_POSITION[group.head.kind]
    if since < limits.work:
        kind = kinds.NOT_YET
        message += _limit_of(limits)
    return kind.finding(subject_of(group, job), message, *facts_of(group), remedy=remedy_of(group))
