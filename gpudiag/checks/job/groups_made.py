"""Process groups that not all ranks made: `new_group` and `DeviceMesh` concern the whole job.

torch numbers a rank's groups in the order in which it makes them, and members meet by that number. A rank
that leaves a call out gives its next group another's number: members wait under two numbers, or two groups
meet.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpudiag.checks.job import kinds
from gpudiag.checks.job.facts import facts_of, subject_of
from gpudiag.checks.job.groups import Group, group_alike, is_are, name_positions
from gpudiag.checks.job.position import Position
from gpudiag.checks.job.subgroups import members_of
from gpudiag.checks.job.waiters import Waiters, describe_call
from gpudiag.checks.job.ways import asks_rank, order_of
from gpudiag.model.evidence import HostSubject
from gpudiag.model.finding import Finding
from gpudiag.model.number_ranges import name_ranks
from gpudiag.reference.stacks import own_frames

_MAKES = frozenset(("new_group", "new_subgroups", "new_subgroups_by_enumeration"))
_HELPER = "_new_process_group_helper"
_DEFAULT_GROUP = "0"


def judge_groups_made(waiters: Waiters) -> Finding | None:
    """The finding for ranks in making a process group that others do not make, or not under its number.

    None where the others have not come there yet: then one that is ahead left out what they wait in.
    """
    making = [one for one in waiters.positions if one.call.operation in _MAKES]
    rest = [one for one in waiters.positions if one not in making]
    numbers = _describe_numbers(waiters.positions)
    if not making and not numbers:
        return None
    if not numbers and (not rest or any(order_of(one, making[0]) < 0 for one in rest)):
        return None
    parts = [
        one
        for one in (_describe_making(making, waiters), numbers, _describe_rest(rest, making, waiters))
        if one
    ]
    guilty = [one for one in rest if making and not _waits_for(one, making, waiters)]
    subject = subject_of(Group(tuple(guilty)), waiters.job) if guilty else HostSubject(waiters.job.host)
    facts = [fact for group in group_alike((*making, *rest))[:3] for fact in facts_of(group)]
    return kinds.GROUP_MADE_BY_SOME.finding(subject, "; ".join(parts), *facts)


def _describe_making(making: Sequence[Position], waiters: Waiters) -> str:
    """`ranks 1-3 wait in the new_group (job.py:15 in f), 12 s so far, which all ranks must call: ...`."""
    if not making:
        return ""
    largest = group_alike(making)[-1]
    condition = _condition_of(largest.head)
    return (
        f"{name_positions(making)} {is_are(making, 'waits')} in {describe_call(largest)}{waiters.since},"
        f" which all ranks of the job must call, members or not, in one order{condition}"
    )


def _condition_of(one: Position) -> str:
    """`: job.py:15 stands after `if rank not in members: continue (line 13)``.

    It is empty where the source shows no condition.
    """
    own = own_frames(one.frames)
    found = [
        (frame, around)
        for frame in own
        for around in frame.inside
        if around.startswith(("if ", "else of if ", "after if ")) and (frame is own[0] or asks_rank(around))
    ]
    asked = next((pair for pair in found if asks_rank(pair[1])), found[0] if found else None)
    if asked is None:
        return ""
    frame, around = asked
    after = around.startswith("after ")
    return f": {frame.place} stands {'after' if after else 'under'} `{around.removeprefix('after ')}`"


def _describe_rest(rest: Sequence[Position], making: Sequence[Position], waiters: Waiters) -> str:
    """Of each group: `rank 0 is not in it: it waits in the all_reduce of ranks 0 and 1 (a.py:8) for ..`."""
    parts = []
    for group in group_alike(rest)[:3]:
        pronoun = "it" if len(group.positions) == 1 else "they"
        awaited = _waits_for(group.head, making, waiters)
        for_whom = f" for {name_ranks(awaited)}" if awaited else ""
        parts.append(
            f"{group.name} {is_are(group.positions, 'has')} left it out, or {is_are(group.positions, 'is')}"
            f" past it: {pronoun} {is_are(group.positions, 'waits')} in {describe_call(group)}{for_whom}"
            if making
            else f"{group.name} {is_are(group.positions, 'waits')} in {describe_call(group)}"
        )
    return "; ".join(parts)


def _waits_for(one: Position, making: Sequence[Position], waiters: Waiters) -> list[int]:
    """The ranks in the making of a group for which a rank waits in a smaller group, as a victim."""
    members = members_of(one, waiters.job)
    if not members or (isinstance(waiters.job.world_size, int) and len(members) >= waiters.job.world_size):
        return []
    return [other.rank for other in making if other.rank is not None and other.rank in members]


def _describe_numbers(positions: Sequence[Position]) -> str:
    """Words for one number that stands for two groups, or for one group that has two numbers."""
    numbered = {one: seen for one in positions if (seen := _numbered(one)) is not None}
    for number in dict.fromkeys(seen.number for seen in numbered.values()):
        same = {one: seen for one, seen in numbered.items() if seen.number == number}
        apart = _by_members(same)
        if len(apart) > 1:
            each = " and ".join(f"{members} on {name_positions(ones)}" for members, ones in apart.items())
            return f"process group {number} is {each}: some ranks have made other groups before it"
    for where in dict.fromkeys((one.where, seen.size) for one, seen in numbered.items() if seen.is_made):
        numbers: dict[str, list[Position]] = {}
        for one, seen in numbered.items():
            if seen.is_made and (one.where, seen.size) == where:
                numbers.setdefault(seen.number, []).append(one)
        if len(numbers) > 1:
            each = " and ".join(f"{number} on {name_positions(ones)}" for number, ones in numbers.items())
            return (
                f"the process group that they make has the number {each}: some ranks"
                " have made fewer groups before it"
            )
    return ""


def _by_members(numbered: Mapping[Position, "_Numbered"]) -> dict[str, list[Position]]:
    """The ranks by the members of their group of one number; by its size where members are not known."""
    apart: dict[str, list[Position]] = {}
    for one, seen in numbered.items():
        known = {other.ranks for other in numbered.values() if other.size == seen.size and other.ranks}
        members = seen.ranks or (known.pop() if len(known) == 1 else ())
        apart.setdefault(name_ranks(members) if members else f"{seen.size} ranks", []).append(one)
    return apart


@dataclass(frozen=True, slots=True)
class _Numbered:
    """The process group that a rank calls or makes."""

    number: str
    size: int
    ranks: tuple[int, ...]  # empty where they are not known
    is_made: bool


def _numbered(one: Position) -> _Numbered | None:
    """The process group that a rank calls or makes, by its number; None for none, or if unknown."""
    if one.call.operation in _MAKES:
        values = next((dict(frame.variables) for frame in one.call.library if frame.function == _HELPER), {})
        name, size = values.get("group_name", "").strip("\"'"), values.get("group_size", "")
        return _Numbered(name, int(size), (), True) if name.isdecimal() and size.isdecimal() else None
    group = one.call.frame.group if one.call.frame is not None else None
    if group is None or group.name == _DEFAULT_GROUP or not group.name.isdecimal():
        return None
    return _Numbered(group.name, group.size, group.ranks, False)
