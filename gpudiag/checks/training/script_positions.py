"""Where ranks of a user's script are: by their looks at themselves, and from outside if that shows more.

Both are looks at processes, of which `find_positions` of running jobs makes positions. A look of a rank's own
adds for how long it has stood still, or what of it still moves.
"""

from collections.abc import Mapping
from dataclasses import replace

from gpudiag.checks.job import activity as at
from gpudiag.checks.job.position import Position, find_positions
from gpudiag.model.job import Job, KnownBy, ProcessLook, RankSeen
from gpudiag.model.reading import NOT_ASKED
from gpudiag.model.script import OwnLook
from gpudiag.reference.stacks import Call
from gpudiag.reference.waits import GPU, RANKS

OUTSIDE = "py-spy and /proc"
_NOTHING_SEEN = (at.UNSEEN, at.GONE, at.STARTING)
_HELD = (at.STOPPED, at.DEBUGGER, at.TERMINAL)  # such a rank reports nothing
# What a stack without a known wait is taken for where the rank moves, and what a function's name alone shows.
_SEEMS_TO_WORK = (at.PYTHON, at.EVALUATION, at.CHECKPOINT, *_NOTHING_SEEN)
# What the call that a line executes waits for, where neither a library's frame nor the kernel shows it.
_BY_ITS_CALL = {
    RANKS: (RANKS, "waits for an operation that it started"),
    GPU: (GPU, "waits for its GPU"),
    at.LOCK: (at.LOCK, "waits for a lock or another thread"),
    at.SLEEP: (at.SLEEP, "sleeps"),
}


def positions_by_reports(
    still: Mapping[int, OwnLook],
    working: Mapping[int, OwnLook],
    finished: Mapping[int, int],
    hosts: Mapping[int, str],
    since: float,
    outside: Job | None = None,
) -> tuple[Position, ...]:
    """The positions of all ranks; what stands still has done so for `since` seconds; `finished`: pids.

    Of ranks that wait for others, either all are as they are seen from outside, or none: two sources name one
    call in two ways.
    """
    reports = dict(sorted({**working, **still}.items()))
    by_themselves = _by_rank(_job_of(reports, hosts))
    seen = {} if outside is None else _by_rank(outside)
    is_whole = all(rank in seen and seen[rank].kind not in _NOTHING_SEEN for rank in reports)
    found = []
    for rank, report in reports.items():
        own, other = _settle(by_themselves[rank], report, since), seen.get(rank)
        if (
            other is None
            or other.kind in _NOTHING_SEEN
            or (waits(own) and not is_whole)
            or (report.work is not None and other.kind not in _HELD)
        ):
            found.append(own)
            continue
        still_there = replace(other, moves=False, since_seconds=max(since, other.since_seconds or 0.0))
        found.append(replace(still_there, busy=other.busy and waits(still_there), counts=own.counts))
    return (*found, *(_ended(rank, pid, hosts[rank]) for rank, pid in sorted(finished.items())))


def waits(one: Position) -> bool:
    """Whether a rank waits for others, or for its GPU, which may be in a collective."""
    return one.waits_for_ranks or one.waits_for_gpu


def _by_rank(job: Job) -> dict[int, Position]:
    return {one.rank: one for one in find_positions(job) if one.rank is not None}


def _job_of(reports: Mapping[int, OwnLook], hosts: Mapping[int, str]) -> Job:
    ranks = tuple(
        replace(
            _seen(rank, hosts[rank], report.look), driver="the library of its GPU" if report.uses_gpu else ""
        )
        for rank, report in reports.items()
    )
    return Job("script", "", "gpudiag", None, NOT_ASKED, None, ranks)


def _settle(one: Position, report: OwnLook, since: float) -> Position:
    """A position by the rank's own look, with what only it knows: its counts, and since when it stands."""
    one = replace(one, counts=(report.batches, report.steps))
    if report.work is not None:
        return replace(
            one,
            kind=at.PYTHON,
            words="works",
            moves=True,
            since_seconds=None,
            in_loop="",
            inner=report.work,
            inner_kind="",
        )
    kind, words = one.kind, one.words
    if one.gpu_wait is not None or one.call.awaited == GPU:
        kind, words = GPU, "waits for its GPU"
    elif kind in _SEEMS_TO_WORK and not one.call.awaited:
        kind, words = _BY_ITS_CALL.get(report.awaited, (at.WAITS, "stands still"))
    return replace(one, kind=kind, words=words, moves=False, busy=False, since_seconds=since, in_loop="")


def _ended(rank: int, pid: int, host: str) -> Position:
    seen = _seen(rank, host, ProcessLook(0.0, pid, "X", 0.0))
    return Position(seen, at.GONE, "has ended its script", Call(None, (), ""), False, None)


def _seen(rank: int, host: str, look: ProcessLook) -> RankSeen:
    return RankSeen(look.pid, rank, NOT_ASKED, KnownBy.ENVIRONMENT, "", 0.0, looks=(look,), host=host)
