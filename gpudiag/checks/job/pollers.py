"""Jobs without a collective to wait in: the rank that stands still in its own work while all others poll."""

from collections.abc import Sequence

from gpudiag.checks.job import activity as at
from gpudiag.checks.job import kinds
from gpudiag.checks.job.facts import facts_of, remedy_of, subject_of
from gpudiag.checks.job.groups import Group, describe, describe_seconds, group_alike, is_are, name_positions
from gpudiag.checks.job.hang_limits import HangLimits
from gpudiag.checks.job.position import Position
from gpudiag.model.finding import Finding
from gpudiag.model.job import Job

_ASK = frozenset((at.POLL, at.SLEEP, at.QUEUE, at.PYTHON))


def judge_pollers(job: Job, alive: Sequence[Position], limits: HangLimits) -> list[Finding]:
    """Findings for ranks that stand still while all others poll; none where a rank moves, or nobody polls."""
    asking = [one for one in alive if one.polls and one.kind in _ASK]
    standing = [one for one in alive if one not in asking]
    if not asking or not standing or any(one.moves or one.busy or one.kind == at.UNSEEN for one in alive):
        return []
    found = []
    for group in group_alike(standing):
        since = _stood(group)
        kind = kinds.OF_POSITION.get(group.head.kind, kinds.WAITS)
        long = since >= limits.alone
        limit = "" if long else f"; after {limits.alone:g} s it is called a hang"
        message = (
            f"{describe(group)}, {describe_seconds(since)} so far, and {_describe_asking(asking)}{limit}"
        )
        facts = (*facts_of(group), *(fact for one in group_alike(asking)[:2] for fact in facts_of(one)[:3]))
        remedy = remedy_of(group) if long else ""
        found.append(
            (kind if long else kinds.NOT_YET).finding(subject_of(group, job), message, *facts, remedy=remedy)
        )
    return found


def _stood(group: Group) -> float:
    known = [one for one in (group.since_seconds, group.head.inner_since_seconds) if one is not None]
    return max(known, default=0.0)


def _describe_asking(asking: Sequence[Position]) -> str:
    """`ranks 0 and 1 only poll (job.py:36 in Ring.acquire_write; job.py:47 in Ring.dequeue)`."""
    lines = list(dict.fromkeys(one.where for one in asking if one.where))[:3]
    return f"{name_positions(asking)} only {is_are(asking, 'polls')} ({'; '.join(lines)})"
