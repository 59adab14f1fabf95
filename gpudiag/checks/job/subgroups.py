"""Process groups of a part of the ranks: who belongs to the one that is waited in, and who is missing."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpudiag.checks.job.facts import facts_of, subject_of
from gpudiag.checks.job.groups import Group, group_alike, is_are, name_positions
from gpudiag.checks.job.position import Position
from gpudiag.checks.job.waiters import Waiters, describe_call
from gpudiag.checks.job.ways import explain_apart, order_of
from gpudiag.model.finding import Finding
from gpudiag.model.job import GroupSeen, Job
from gpudiag.model.number_ranges import name_ranks
from gpudiag.model.reading import Missing

# Calls by which all ranks of the job meet, whatever group they make.
JOINS = frozenset(
    """
    init_process_group _store_based_barrier rendezvous new_group _new_process_group_helper init_rpc
    """.split()
)
_DEFAULT_GROUP = "0"


def members_of(one: Position, job: Job) -> frozenset[int]:
    """The ranks of the group that a rank waits in, by its memory, else flight records; or empty."""
    group = one.call.frame.group if one.call.frame is not None else None
    if group is None or one.call.operation in JOINS:
        return frozenset()
    if group.ranks:
        return frozenset(group.ranks)
    if group.name == _DEFAULT_GROUP and group.size == job.world_size:
        return frozenset(range(group.size))
    return _members_by_records(group, job)


def lacks_members(group: Group) -> bool:
    """Whether ranks wait in a smaller group for members of it that are not known."""
    seen = group.head.call.frame.group if group.head.call.frame is not None else None
    if seen is None or seen.name in ("", _DEFAULT_GROUP) or seen.ranks:
        return False
    return len(group.positions) < seen.size


def _members_by_records(group: GroupSeen, job: Job) -> frozenset[int]:
    records = job.state.records if job.state is not None else ()
    known = {
        frozenset(one.ranks)
        for record in records
        for one in record.groups
        if group.name and one.name == group.name and len(one.ranks) == group.size
    }
    return known.pop() if len(known) == 1 else frozenset()


def awaited_ranks(waiters: Waiters) -> frozenset[int] | None:
    """The ranks that are missing in the calls of those that wait; None if some members are unknown."""
    awaited: set[int] = set()
    for group in waiters.groups:
        members = members_of(group.head, waiters.job)
        if not members:
            return None
        awaited |= members - set(group.ranks)
    return frozenset(awaited)


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of a smaller group: who waits in it, which members wait elsewhere, and who is to blame."""

    waits: Group
    absent: tuple[Position, ...]
    guilty: tuple[Position, ...]
    certain: bool  # that the missing ones are further on
    size: int


def judge_missing_members(waiters: Waiters, groups: Sequence[Group]) -> Finding | None:
    """The finding for ranks that left out a call of a smaller group that they belong to, and wait further on.

    Who waits in the smaller group is innocent, unless most members are further on: then its call was not due.
    If that is unknown, the missing members are named: the call of the fewest shows most.
    """
    calls = [found for waits in groups if (found := _find_call(waiters, waits)) is not None]
    if not calls:
        return None
    call = min(calls, key=lambda one: (not one.certain, one.size))
    return (
        _describe_extra(waiters, call)
        if call.guilty == call.waits.positions
        else _describe_missing(waiters, call)
    )


def _find_call(waiters: Waiters, waits: Group) -> _Call | None:
    """The call of a smaller group that lacks members; None if they may come, or are not seen."""
    members = members_of(waits.head, waiters.job)
    missing = members - set(waits.ranks)
    absent = tuple(one for one in waiters.positions if one.rank in missing)
    if not set(waits.ranks) < members or len(absent) < len(missing) or _is_whole_job(members, waiters):
        return None
    orders = {one: order_of(one, waits.head) for one in absent}
    further = tuple(one for one in absent if orders[one] > 0)
    if len(further) > len(waits.positions):
        return _Call(waits, absent, waits.positions, True, len(members))
    unknown = tuple(one for one in absent if orders[one] == 0 and _waits_back(one, waits, waiters))
    if not further and not unknown:
        return None
    return _Call(waits, absent, further or unknown, bool(further), len(members))


def _is_whole_job(members: frozenset[int], waiters: Waiters) -> bool:
    size = waiters.job.world_size
    return not isinstance(size, Missing) and len(members) >= size


def _waits_back(one: Position, waits: Group, waiters: Waiters) -> bool:
    """Whether a missing rank waits, in its own call, for those that wait for it: else it may come yet."""
    members = members_of(one, waiters.job)
    return not members or bool(members & set(waits.ranks))


def _describe_missing(waiters: Waiters, call: _Call) -> Finding:
    """`rank 1 is not in the all_reduce of ranks 0 and 1 (a.py:8) that rank 0 waits in: it waits in ...`."""
    waits, guilty = call.waits, call.guilty
    alike = group_alike(guilty)
    head = alike[0]
    kind, why = explain_apart(head, waits)
    pronoun = "it" if len(guilty) == 1 else "they"
    elsewhere = (
        f"{pronoun} {is_are(guilty, 'waits')} in {describe_call(head)}" if len(alike) == 1 else _each(alike)
    )
    message = (
        f"{name_positions(guilty)} {is_are(guilty, 'is')} not in {_name_call(waiters, waits)} that"
        f" {waits.name} {is_are(waits.positions, 'waits')} in{waiters.since}: {elsewhere}{why}"
    )
    return kind.finding(subject_of(Group(guilty), waiters.job), message, *facts_of(head), *facts_of(waits))


def _describe_extra(waiters: Waiters, call: _Call) -> Finding:
    """`rank 1 waits in the all_reduce of ranks 1-3 (a.py:8) since 9 s, and rank 2 is not in it: ...`."""
    alike = group_alike(call.absent)
    kind, why = explain_apart(call.waits, alike[-1])
    message = (
        f"{call.waits.name} {is_are(call.waits.positions, 'waits')} in"
        f" {_name_call(waiters, call.waits)}{waiters.since}, and {name_positions(call.absent)}"
        f" {is_are(call.absent, 'is')} not in it: {_each(alike)}{why}"
    )
    facts = (*facts_of(call.waits), *facts_of(alike[-1]))
    return kind.finding(subject_of(call.waits, waiters.job), message, *facts)


def _name_call(waiters: Waiters, waits: Group) -> str:
    """`the all_reduce of ranks 0 and 1 (a.py:8 in main)`."""
    members = name_ranks(sorted(members_of(waits.head, waiters.job)))
    where = f" ({waits.head.where})" if waits.head.where else ""
    return f"the {waits.head.call.operation or 'collective'} of {members}{where}"


def _each(alike: Sequence[Group]) -> str:
    return "; ".join(
        f"{one.name} {is_are(one.positions, 'waits')} in {describe_call(one)}" for one in alike[:3]
    )
