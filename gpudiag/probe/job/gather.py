"""Jobs with their looks, gathered by a guarded child: what `gpudiag.probe.job.look` sends, put together."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gpudiag.errors import SourceFailedError
from gpudiag.model.codec import decode
from gpudiag.model.job import ChildSeen, Frame, Job, KnownBy, ProcessLook, RankSeen
from gpudiag.model.reading import Missing, MissingReason, Reading
from gpudiag.probe.guard import GuardedChild, run_guarded, start_guarded
from gpudiag.probe.job.look import Wanted

_LOOK_SECONDS = 20.0  # for one look at all ranks, on a machine whose load is a hundred
_LOOKS_AT_KNOWN = 2
_LATE = Missing(MissingReason.TIMED_OUT, "reads of its files in /proc did not return in time")


@dataclass(frozen=True, slots=True)
class Gathered:
    """Jobs with looks at their ranks.

    `hidden` Python processes belong to others and could not be asked for their rank. `refusal`: why the
    process that was named is of no job, and what to do.
    """

    jobs: tuple[Job, ...]
    hidden: int
    refusal: tuple[str, str] | None = None


@dataclass(slots=True)
class _Sent:
    """What the child has sent."""

    jobs: tuple[Job, ...] = ()
    hidden: int = 0
    looks: dict[int, dict[int, ProcessLook]] = field(default_factory=dict)  # by pid, then by number
    children: dict[int, tuple[ChildSeen, ...]] = field(default_factory=dict)  # begun since, by the rank's pid
    lines: dict[tuple[str, int], tuple[str, tuple[str, ...], str]] = field(default_factory=dict)


def gather_looks(wanted: Wanted, within_seconds: float | None = None) -> Gathered:
    """The jobs that are wanted, each rank with its looks; none where there is no such job.

    Looks that have not come within that time are missing.

    Raises:
        SourceFailedError: nothing could be listed at all.
    """
    seconds = max(1, wanted.looks) * (wanted.between_seconds + _LOOK_SECONDS)  # to list them takes some too
    if within_seconds is not None:
        seconds = min(seconds, max(0.0, within_seconds))
    child = run_guarded(
        "gpudiag.probe.job.look:stream_looks",
        seconds,
        wanted.pid,
        wanted.slurm_job,
        wanted.looks,
        wanted.between_seconds,
    )
    sent = _read(child.messages)
    if sent is None:
        raise SourceFailedError(
            f"the processes of this machine could not be listed: {child.ending} {child.detail}".strip()
        )
    refusal = next(((words[1], words[2]) for words in child.messages if words[0] == "refused"), None)
    return Gathered(tuple(_join(job, sent, wanted.looks) for job in sent.jobs), sent.hidden, refusal)


def start_looks_at(pids: Mapping[int, int], world_size: int) -> GuardedChild:
    """A child that looks twice at ranks whose processes are known; `pids` is by rank."""
    return start_guarded(
        "gpudiag.probe.job.look:stream_looks_at", sorted(pids.items()), world_size, _LOOKS_AT_KNOWN
    )


def read_looks_at(child: GuardedChild) -> Job | None:
    """The job with the looks of an ended child of `start_looks_at`; None where they are not whole."""
    sent = _read(child.messages) if child.ending == "finished" else None
    return _join(sent.jobs[0], sent, _LOOKS_AT_KNOWN) if sent is not None and sent.jobs else None


def join_looks(job: Job, again: Job, at_seconds: float) -> Job:
    """The job with the looks of another gathering of it added to each rank, the last to each child of now.

    `at_seconds` is when that began.
    """
    later = {one.pid: one for one in (*again.ranks, *again.servers)}
    ranks = tuple(_join_rank(one, later.get(one.pid), at_seconds) for one in job.ranks)
    servers = tuple(_join_rank(one, later.get(one.pid), at_seconds) for one in job.servers)
    return replace(job, ranks=ranks, servers=servers)


def _join_rank(rank: RankSeen, seen: RankSeen | None, at_seconds: float) -> RankSeen:
    looks = seen.looks if seen is not None else (ProcessLook(0.0, rank.pid, "X", 0.0),)
    began = looks[0].at_seconds
    added = [
        replace(_with_native_of(rank.last, look), at_seconds=round(at_seconds + look.at_seconds - began, 3))
        for look in looks
    ]
    earlier = {child.pid: child.looks for child in rank.children}
    joined = tuple(
        replace(
            child,
            looks=(
                *earlier.get(child.pid, ()),
                *(replace(look, at_seconds=added[-1].at_seconds) for look in child.looks[-1:]),
            ),
        )
        for child in (seen.children if seen is not None else rank.children)
    )
    return replace(rank, looks=(*rank.looks, *added), children=joined)


def _with_native_of(earlier: ProcessLook, later: ProcessLook) -> ProcessLook:
    """The later look, with the earlier one's C functions where the main thread is still at the same lines."""
    one, other = earlier.main, later.main
    if one is None or other is None or not one.native:
        return later
    if [(frame.file, frame.line) for frame in one.frames] != [
        (frame.file, frame.line) for frame in other.frames
    ]:
        return later
    threads = tuple(
        replace(thread, native=one.native) if thread.tid == other.tid else thread for thread in later.threads
    )
    return replace(later, threads=threads, stopped_seconds=earlier.stopped_seconds)


def _read(messages: Iterable[Any]) -> _Sent | None:
    sent: _Sent | None = None
    for kind, *rest in messages:
        if kind == "jobs":
            sent = _Sent(tuple(decode(Job, one) for one in rest[0]), rest[1])
        elif sent is not None and kind == "look":
            pid, _, number, look = rest
            sent.looks.setdefault(pid, {})[number] = decode(ProcessLook, look)
        elif sent is not None and kind == "children":
            pid, begun = rest
            sent.children[pid] = (
                *sent.children.get(pid, ()),
                *(decode(ChildSeen, one) for one in begun),
            )
        elif sent is not None and kind == "source":
            file, line, text, inside, polls = rest
            sent.lines[file, line] = (text, tuple(inside), polls)
    return sent


def _join(job: Job, sent: _Sent, count: int) -> Job:
    ranks = [
        replace(
            rank,
            looks=_looks_of(rank.pid, sent, count),
            children=tuple(
                _with_looks(child, sent) for child in (*rank.children, *sent.children.get(rank.pid, ()))
            ),
        )
        for rank in job.ranks
    ]
    numbered = [_with_rank(rank) for rank in ranks]
    size = _world_size(job, numbered)
    servers = tuple(replace(one, looks=_looks_of(one.pid, sent, count)) for one in job.servers)
    ordered = tuple(sorted(_with_last_number(numbered, size), key=_order))
    return replace(job, ranks=ordered, world_size=size, servers=servers)


def _with_last_number(ranks: Sequence[RankSeen], size: Reading[int]) -> list[RankSeen]:
    """The ranks, where the only one without a number has the only one that is left."""
    known = {rank.rank for rank in ranks if not isinstance(rank.rank, Missing)}
    left = set() if isinstance(size, Missing) else set(range(size)) - known
    if len(ranks) != size or len(left) != 1:
        return list(ranks)
    number = left.pop()
    return [
        replace(rank, rank=number, local_rank=number, known_by=KnownBy.STACK)
        if isinstance(rank.rank, Missing)
        else rank
        for rank in ranks
    ]


def _looks_of(pid: int, sent: _Sent, count: int) -> tuple[ProcessLook, ...]:
    """The looks at a rank; one that did not come is there, without anything in it."""
    looks = sent.looks.get(pid, {})
    late = ProcessLook(0.0, pid, "?", 0.0, stacks=_LATE)
    return tuple(_with_lines(looks.get(number, late), sent) for number in range(count))


def _with_looks(child: ChildSeen, sent: _Sent) -> ChildSeen:
    looks = sent.looks.get(child.pid, {})
    return replace(child, looks=tuple(_with_lines(looks[number], sent) for number in sorted(looks)))


def _with_lines(look: ProcessLook, sent: _Sent) -> ProcessLook:
    threads = (
        replace(thread, frames=tuple(_with_line(frame, sent) for frame in thread.frames))
        if thread.frames
        else thread
        for thread in look.threads
    )
    return replace(look, threads=tuple(threads))


def _with_line(frame: Frame, sent: _Sent) -> Frame:
    if (frame.file, frame.line) not in sent.lines:
        return frame
    text, inside, polls = sent.lines[frame.file, frame.line]
    return replace(frame, text=text, inside=inside, polls=polls)


def _with_rank(rank: RankSeen) -> RankSeen:
    """The rank with its number in the default process group, where nothing else shows it."""
    if not isinstance(rank.rank, Missing) and rank.known_by is not KnownBy.NOTHING:
        return rank
    group = _default_group(rank)
    if group is None:
        return rank
    return replace(rank, rank=group, local_rank=group, known_by=KnownBy.STACK)


def _default_group(rank: RankSeen) -> int | None:
    for frame in (frame for look in rank.looks for thread in look.threads for frame in thread.frames):
        if frame.group is not None and frame.group.name == "0":
            return frame.group.rank
    return None


def _world_size(job: Job, ranks: Iterable[RankSeen]) -> Reading[int]:
    """The size of the default group where a rank is in a call of it, else the launcher's."""
    for rank in ranks:
        for frame in (frame for look in rank.looks for thread in look.threads for frame in thread.frames):
            if frame.group is not None and frame.group.name == "0":
                return frame.group.size
    return job.world_size


def _order(rank: RankSeen) -> tuple[int, int]:
    return (1 << 30 if isinstance(rank.rank, Missing) else rank.rank, rank.pid)
