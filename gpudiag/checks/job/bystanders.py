"""Ranks that stand still in something of their own while others move, and nobody waits for them in a call.

A job without collectives, as a sweep with one trial on each rank, has no other sign. A rank in a queue, in a
sleep, or that waits for a connection or a thread may be there for what others send it: it is left alone.
"""

from collections.abc import Sequence

from gpudiag.checks.job import activity as at
from gpudiag.checks.job import kinds
from gpudiag.checks.job.activity import FILE_LOCKS
from gpudiag.checks.job.facts import facts_of, remedy_of, subject_of
from gpudiag.checks.job.groups import Group, describe, describe_seconds, group_alike
from gpudiag.checks.job.hang_limits import HangLimits
from gpudiag.checks.job.position import Position
from gpudiag.model.finding import Finding
from gpudiag.model.job import Job
from gpudiag.reference.waits import COMPILER

# In these a rank waits for its own work, and serves nobody.
_OWN_WORK = frozenset((at.FILE, at.DATABASE, at.CHECKPOINT, at.LOADER, COMPILER))


def judge_bystanders(job: Job, positions: Sequence[Position], limits: HangLimits) -> tuple[Finding, ...]:
    """The findings for ranks that stand still in their own work beside others; none where no rank moves."""
    moving = [one for one in positions if one.moves and one.behind is None]
    groups = group_alike(one for one in positions if _stands_still(one)) if moving else ()
    return tuple(finding for group in groups if (finding := _judge(job, group, moving, limits)) is not None)


def _stands_still(one: Position) -> bool:
    if one.moves or one.busy or one.polls or one.waits_for_ranks or one.waits_for_gpu:
        return False
    main = one.seen.last.main
    if one.kind != at.LOCK or main is None:
        return one.kind in _OWN_WORK
    return main.syscall in FILE_LOCKS or (main.awaited is not None and main.awaited.kind == "lock file")


def _judge(job: Job, group: Group, moving: Sequence[Position], limits: HangLimits) -> Finding | None:
    since = max(group.since_seconds or 0.0, group.head.inner_since_seconds or 0.0)
    if since < (limits.news if group.head.kind == COMPILER else limits.alone):
        return None
    others = "; ".join(describe(one) for one in group_alike(moving)[-2:])
    them = "it" if len(group.positions) == 1 else "them"
    message = (
        f"{describe(group)}, {describe_seconds(since)} so far, while {others};"
        f" no rank waits for {them} in a collective"
    )
    kind = kinds.OF_POSITION[group.head.kind]
    if since < limits.work:
        kind = kinds.NOT_YET
        message += f"; after {limits.work:g} s ({limits.work_flag}) it is called a hang"
    return kind.finding(subject_of(group, job), message, *facts_of(group), remedy=remedy_of(group))
