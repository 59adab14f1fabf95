"""Where ranks of a user's script are: by their own reports, and by a look from outside where it shows more.

A rank's report has its main thread's stack and what still moves in its process; py-spy and /proc also show the file, the lock or the
tensors. Both become positions, which the judge of running jobs takes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpudiag.checks.job import position as at
from gpudiag.checks.job.position import Position, find_position
from gpudiag.checks.job.threads import with_training_threads
from gpudiag.model.job import Frame, Job, KnownBy, ProcessLook, RankSeen, ThreadLook
from gpudiag.model.reading import NOT_ASKED
from gpudiag.model.script import ScriptPlace
from gpudiag.reference.stacks import Call, read_call
from gpudiag.reference.waits import GPU, RANKS

OWN_REPORT = "Python stacks"
OUTSIDE = "py-spy and /proc"
_KINDS = {"storage": at.CHECKPOINT}  # where waits.toml has another word
_NOTHING_SEEN = (at.UNSEEN, at.GONE, at.STARTING)
_HELD = (at.STOPPED, at.DEBUGGER, at.TERMINAL)  # such a rank reports nothing


def find_positions(
    still: Mapping[int, ScriptPlace],
    working: Mapping[int, ScriptPlace],
    finished: Sequence[int],
    hosts: Mapping[int, str],
    since: float,
    outside: Job | None = None,
) -> tuple[Position, ...]:
    """The positions of all ranks; those that stand still have done so for `since` seconds.

    Of ranks that wait for others, either all are as they are seen from outside, or none: two sources name one call in two ways.
    """
    seen = {} if outside is None else _seen_from_outside(outside)
    is_whole = still.keys() | working.keys() <= seen.keys()
    found = []
    for rank, place in sorted({**working, **still}.items()):
        own, other = _reported(rank, place, hosts[rank], since), seen.get(rank)
        if other is None or (waits(own) and not is_whole) or (rank in working and other.kind not in _HELD):
            found.append(own)
            continue
        still_there = replace(other, moves=False, since_seconds=max(since, other.since_seconds or 0.0))
        found.append(replace(still_there, busy=other.busy and waits(still_there)))
    return (*found, *(_ended(rank, hosts[rank]) for rank in sorted(finished)))


def waits(one: Position) -> bool:
    """Whether a rank waits for others, or for its GPU, which may be in a collective."""
    return one.waits_for_ranks or one.waits_for_gpu


def _seen_from_outside(job: Job) -> dict[int, Position]:
    positions = (find_position(rank, job) for rank in with_training_threads(job).ranks)
    return {one.rank: one for one in positions if one.rank is not None and one.kind not in _NOTHING_SEEN}


def _reported(rank: int, place: ScriptPlace, host: str, since: float) -> Position:
    """A rank's position by its own report."""
    own = replace(_frame(place.place), text=place.call)
    library: list[Frame] = []
    outer: list[Frame] = []
    for frame in map(_frame, place.stack):
        if outer or frame.place == own.place:
            outer.append(frame)
        else:
            library.append(frame)
    inner = read_call(library)
    call = Call(
        own if own.line else None,
        tuple(library),
        place.awaited or "",
        place.awaited_words,
        inner.operation,
        inner.frame,
    )
    kind, words = _kind(place, call)
    seen = _seen(rank, host, "S", (*library, own, *outer[1:]))
    works = place.work is not None
    return Position(seen, kind, words, call, works, None if works else since, inner=place.work or "")


def _kind(place: ScriptPlace, call: Call) -> tuple[str, str]:
    if place.work is not None:
        return at.PYTHON, "works"
    if place.awaited == RANKS:
        return RANKS, f"waits in {call.operation or 'a collective'}"
    if place.awaited == GPU:
        return GPU, "waits for its GPU"
    if place.awaited is None:
        return at.WAITS, "stands still"
    return _KINDS.get(place.awaited, place.awaited), f"waits {place.awaited_words}"


def _ended(rank: int, host: str) -> Position:
    return Position(_seen(rank, host, "X"), at.GONE, "has ended its script", Call(None, (), ""), False, None)


def _seen(rank: int, host: str, state: str, frames: tuple[Frame, ...] = ()) -> RankSeen:
    """The rank with one look, under its number in place of a pid, which it does not report."""
    main = ThreadLook(rank, "", state, 0.0, frames=frames)
    look = ProcessLook(0.0, rank, state, 0.0, threads=(main,), stacks=OWN_REPORT)
    return RankSeen(rank, rank, NOT_ASKED, KnownBy.ENVIRONMENT, "", 0.0, looks=(look,), host=host)


def _frame(words: str) -> Frame:
    """The frame of `FILE:LINE in FUNCTION`."""
    where, _, function = words.rpartition(" in ")
    file, _, line = where.rpartition(":")
    return Frame(file, function, int(line)) if line.isdecimal() else Frame(words, "", 0)
