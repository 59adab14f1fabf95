"""Ranks that wait for a lock of another rank: that one is why, unless it waits for the others itself."""

from collections.abc import Sequence
from dataclasses import replace

from gpudiag.checks.job import activity as at
from gpudiag.checks.job.position import Position

_Owners = dict[tuple[str, int], Position]  # the ranks, by machine and process number, their children's too


def follow_locks(positions: Sequence[Position]) -> tuple[Position, ...]:
    """The positions; one behind a lock of a rank that does not wait for ranks moves as that rank does."""
    owners = {(one.seen.host, one.seen.pid): one for one in positions}
    owners |= {(one.seen.host, child.pid): one for one in positions for child in one.seen.children}
    return tuple(_behind(one, owners) for one in positions)


def _behind(one: Position, owners: _Owners) -> Position:
    """The position with the rank at the end of the chain of locks; as it is where that leads nowhere.

    A rank that waits for a lock of one that waits for it in a collective has hung with it.
    """
    holder, passed = _holder_of(one, owners), [one]
    while holder is not None and all(holder is not other for other in passed):
        further = _holder_of(holder, owners)
        if further is None:
            is_cause = not (holder.waits_for_ranks or holder.waits_for_gpu or holder.kind == at.UNSEEN)
            moves = holder.moves or holder.busy
            return replace(one, behind=holder.seen, moves=moves) if is_cause else one
        passed.append(holder)
        holder = further
    return one


def _holder_of(one: Position, owners: _Owners) -> Position | None:
    """The other rank of which a process holds the lock that a rank waits for; None for any other wait."""
    main = one.seen.last.main
    if one.kind != at.LOCK or one.moves or main is None or main.awaited is None:
        return None
    keys = ((one.seen.host, pid) for pid in main.awaited.holders)
    found = (owners[key] for key in keys if key in owners)
    return next((other for other in found if other is not one), None)


def with_holders(positions: Sequence[Position], others: Sequence[Position]) -> list[Position]:
    """The positions, where in place of one behind a lock stands the rank that holds it."""
    found: list[Position] = []
    for one in positions:
        holder = next((other for other in others if other.seen is one.behind), one)
        if all(holder.seen is not other.seen for other in found):
            found.append(holder)
    return found
