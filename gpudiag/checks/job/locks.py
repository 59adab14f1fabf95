"""Ranks that wait for a lock of another rank: that one is why, unless it waits for the others itself."""

from collections.abc import Sequence
from dataclasses import replace

from gpudiag.checks.job import position as at
from gpudiag.checks.job.position import Position


def follow_locks(positions: Sequence[Position]) -> tuple[Position, ...]:
    """The positions; one behind a lock of a rank that does not wait for ranks moves as that rank does."""
    owners = {one.seen.pid: one for one in positions}
    owners |= {child.pid: one for one in positions for child in one.seen.children}
    return tuple(_behind(one, owners) for one in positions)


def _behind(one: Position, owners: dict[int, Position]) -> Position:
    """The position with the rank at the end of the chain of locks; as it is where that leads nowhere.

    A rank that waits for a lock of one that waits for it in a collective has hung with it.
    """
    holder, passed = _holder_of(one, owners), [one]
    while holder is not None and all(holder is not other for other in passed):
        further = _holder_of(holder, owners)
        if further is None:
            is_cause = not (holder.waits_for_ranks or holder.waits_for_gpu or holder.kind == at.UNSEEN)
            moves = holder.moves or holder.busy
            return replace(one, behind=holder.seen.pid, moves=moves) if is_cause else one
        passed.append(holder)
        holder = further
    return one


def _holder_of(one: Position, owners: dict[int, Position]) -> Position | None:
    """The other rank of which a process holds the lock that a rank waits for; None for any other wait."""
    main = one.seen.last.main
    if one.kind != at.LOCK or one.moves or main is None or main.awaited is None:
        return None
    found = (owners[pid] for pid in main.awaited.holders if pid in owners)
    return next((other for other in found if other is not one), None)


def with_holders(positions: Sequence[Position], others: Sequence[Position]) -> list[Position]:
    """The positions, where in place of one behind a lock stands the rank that holds it."""
    by_pid = {one.seen.pid: one for one in others}
    found = (one if one.behind is None else by_pid.get(one.behind, one) for one in positions)
    return list({one.seen.pid: one for one in found}.values())
