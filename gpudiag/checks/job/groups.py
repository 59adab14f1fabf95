"""Ranks at equal places as one group, and the words for ranks and for what they do."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpudiag.checks.job.activity import FOR_RANKS, describe_line
from gpudiag.checks.job.position import Position
from gpudiag.model.job import Frame, Place
from gpudiag.model.number_ranges import name_ranks
from gpudiag.model.reading import NOT_ASKED
from gpudiag.reference.stacks import own_frames

_STACK_FRAMES = 6
_PEERS = ("src", "dst", "group_src", "group_dst")


@dataclass(frozen=True, slots=True)
class Group:
    """Positions that are alike; never empty."""

    positions: tuple[Position, ...]

    @property
    def head(self) -> Position:
        """The first of them."""
        return self.positions[0]

    @property
    def ranks(self) -> tuple[int, ...]:
        """Their ranks, as far as they are known."""
        return tuple(one.rank for one in self.positions if one.rank is not None)

    @property
    def name(self) -> str:
        """`rank 2`, `ranks 0, 1 and 3`; pids where the ranks are unknown."""
        return name_positions(self.positions)

    @property
    def since_seconds(self) -> float | None:
        """For how long all of them have been there at least."""
        known = [one.since_seconds for one in self.positions if one.since_seconds is not None]
        return min(known) if known else None


def group_alike(positions: Iterable[Position]) -> list[Group]:
    """The positions by kind, line, call and group, the smallest groups first."""
    found: dict[tuple[object, ...], list[Position]] = {}
    for one in positions:
        found.setdefault(_alike(one), []).append(one)
    return sorted(
        (Group(tuple(members)) for members in found.values()),
        key=lambda group: (len(group.positions), group.ranks),
    )


def _alike(one: Position) -> tuple[object, ...]:
    own = one.call.own
    where: tuple[object, ...] = (own.file, own.function, own.line, one.where) if own is not None else ()
    if one.kind in FOR_RANKS:
        # Where one stands two ways to one call, as through two lines of a helper, both are shown.
        stack = tuple((frame.file, frame.line) for frame in own_frames(one.frames))
        return one.kind, one.call.operation, stack, one.where, group_key(one), peers_of(one)
    if one.polls and one.in_loop:
        where = (*where[:2], one.in_loop)  # wherever in it one is seen
    return one.kind, where, one.words if one.kind in ("stopped", "gone") else "", one.moves, one.busy


def group_key(one: Position) -> tuple[str, int]:
    """What distinguishes process groups; equal where it is not known."""
    group = one.call.frame.group if one.call.frame is not None else None
    return (group.name, group.size) if group is not None else ("", 0)


def peers_of(one: Position) -> tuple[tuple[str, str], ...]:
    """The root or the peer that a call names."""
    frame = one.call.frame
    if frame is None or one.call.operation in ("send", "recv", "isend", "irecv"):
        return ()
    return tuple((name, value) for name, value in frame.variables if name in _PEERS and value != "None")


def peer_of(one: Position) -> int | None:
    """The rank that a send or a receive is with; None for other calls, and where it is not known."""
    frame = one.call.frame
    if one.call.operation not in ("send", "recv") or frame is None:
        return None
    names = ("dst", "group_dst") if one.call.operation == "send" else ("src", "group_src")
    values = dict(frame.variables)
    return next((int(values[name]) for name in names if values.get(name, "").isdecimal()), None)


def name_positions(positions: Sequence[Position]) -> str:
    """The ranks of positions; pids for those without a rank."""
    ranks = [one.rank for one in positions if one.rank is not None]
    pids = [one.seen.pid for one in positions if one.rank is None]
    parts = [name_ranks(ranks)] if ranks else []
    parts += [("pid " if len(pids) == 1 else "pids ") + ", ".join(map(str, pids))] if pids else []
    return " and ".join(parts)


def is_are(positions: Sequence[Position], words: str) -> str:
    """`waits in barrier` for one rank, `wait in barrier` for several."""
    first, _, rest = words.partition(" ")
    if len(positions) == 1:
        return words
    plural = {"is": "are", "has": "have", "does": "do", "compiles": "compile", "evaluates": "evaluate"}.get(
        first
    )
    if plural is None:
        plural = first[:-1] if first.endswith("s") and not first.endswith("ss") else first
    changed = f"{plural} {rest}".strip().replace("its GPU", "their GPUs")
    return changed.replace("its data loader's workers", "their data loaders' workers")


def describe(group: Group) -> str:
    """`ranks 0, 1 and 3 wait in all_reduce at train.py:10 in main`."""
    head = group.head
    line = f" at {head.where}" if head.where else ""
    inner = f": {head.inner}" if head.inner else ""
    return f"{group.name} {is_are(group.positions, head.words)}{line}{inner}"


def describe_seconds(seconds: float | None) -> str:
    """`41 s`, `12 min`; empty where it is not known."""
    if seconds is None:
        return ""
    return f"{seconds:.0f} s" if seconds < 180 else f"{seconds / 60:.0f} min"


def place_of(group: Group) -> Place:
    """The group for people and programs."""
    head = group.head
    stack = tuple(_in_words(frame) for frame in own_frames(head.frames)[:_STACK_FRAMES])
    since = group.since_seconds
    return Place(
        group.ranks,
        head.kind,
        is_are(group.positions, head.words)
        + (f": {head.inner}" if head.inner else "")
        + (f"; {head.throttle.words}" if head.throttle is not None else ""),
        head.where,
        stack,
        NOT_ASKED if since is None else round(since, 1),
        any(one.moves for one in group.positions),
        any(one.busy for one in group.positions),
        tuple(one.seen.pid for one in group.positions if one.rank is None),
        head.call.operation if head.kind in FOR_RANKS else "",
    )


def _in_words(frame: Frame) -> str:
    return f"{describe_line(frame)}: {frame.text}" if frame.text else describe_line(frame)
