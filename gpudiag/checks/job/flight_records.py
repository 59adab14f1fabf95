"""Flight records of a job's ranks, judged: who is not in the collective that others wait in, or in another.

Group by group, the earliest collective that a rank has not left is looked for in the records of all members.
Those in another call are blamed first; then those that have not launched it, unless they wait in another
group: then whoever holds that one up.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gpudiag.checks.job.differences import Apart, Difference, has, name_many, wait
from gpudiag.model.evidence import Evidence
from gpudiag.model.job_state import CallState, FlightRecord, RecordedCall
from gpudiag.model.reading import Missing, Reading

SOURCE = "flight recorder"
_DEFAULT_GROUP = "default_pg"
_THIRD_PARTY = ("/torch/", "/site-packages/", "/dist-packages/")
# All ranks must pass the same sizes; elsewhere a root, or the own part, may differ.
_SAME_INPUT = frozenset(
    (
        *(
            "all_reduce",
            "allreduce",
            "allreduce_coalesced",
            "reduce",
            "_reduce_oop",
            "broadcast",
            "_broadcast_oop",
        ),
        *("_allgather_base", "all_gather_into_tensor", "_reduce_scatter_base", "reduce_scatter_tensor"),
    )
)
_Key = tuple[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class JudgedRecords:
    """The differences that the records show, those to blame first, and what they do not show."""

    differences: tuple[Difference, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Group:
    """One process group: the collectives of each member that left a record, in order."""

    name: str
    description: str
    members: tuple[int, ...]
    calls: Mapping[int, Sequence[RecordedCall]]

    @property
    def words(self) -> str:
        """What people call it."""
        if self.description == _DEFAULT_GROUP or (self.name in ("0", "") and not self.description):
            return "the default group"
        if self.description:
            return f"the group {self.description}"
        return f"the group of {name_many(self.members)}"

    def last(self, rank: int) -> RecordedCall | None:
        """The last collective that this member launched."""
        calls = self.calls.get(rank, ())
        return calls[-1] if calls else None

    def pending(self, rank: int) -> RecordedCall | None:
        """The first collective that this member has not come out of."""
        return next((call for call in self.calls.get(rank, ()) if call.is_pending), None)


def judge_records(
    records: Sequence[FlightRecord],
    world_size: Reading[int] | None = None,
    *,
    still_seconds: float = 0.0,
) -> JudgedRecords:
    """What the records of one job show; those of unknown ranks are left out, with a note.

    A rank's records (gloo and NCCL, two dumps) are put together. If their time is known, only calls of
    `still_seconds` and more are waits: in a running job somebody is always last.
    """
    records = [_without_young(record, still_seconds) for record in records]
    known = [record for record in records if not isinstance(record.rank, Missing)]
    by_rank: dict[int, list[RecordedCall]] = defaultdict(list)
    for record in known:
        if isinstance(record.rank, int):
            by_rank[record.rank] += record.calls
    notes = []
    if len(known) < len(records):
        notes.append(f"{len(records) - len(known)} flight records do not name the rank that wrote them")
    groups = _find_groups(known, by_rank, world_size)
    stuck = {
        rank: (group, call)
        for group in groups
        for rank in group.calls
        if (call := group.pending(rank)) is not None
    }
    found = [difference for group in groups if (difference := _judge_group(group, by_rank)) is not None]
    found += _judge_point_to_point(by_rank, groups)
    notes += _absent(groups, by_rank)
    return JudgedRecords(_those_to_blame(found, set(stuck) | _waiting_for_peers(by_rank)), tuple(notes))


def _without_young(record: FlightRecord, still_seconds: float) -> FlightRecord:
    """The record, where calls that began only just before it was dumped count as ended."""
    dumped_at = record.dumped_at
    if isinstance(dumped_at, Missing) or still_seconds <= 0:
        return record
    calls = tuple(
        replace(call, state=CallState.COMPLETED)
        if call.is_pending
        and isinstance(call.created_at, float)
        and dumped_at - call.created_at < still_seconds
        else call
        for call in record.calls
    )
    return replace(record, calls=calls)


def _find_groups(
    records: Sequence[FlightRecord],
    by_rank: Mapping[int, list[RecordedCall]],
    world_size: Reading[int] | None,
) -> list[_Group]:
    members: dict[tuple[int, str], tuple[int, ...]] = {}
    for record in records:
        for described in record.groups:
            if isinstance(record.rank, int) and record.rank in described.ranks:
                members[record.rank, described.name] = described.ranks
    calls: dict[_Key, dict[int, dict[int, RecordedCall]]] = defaultdict(lambda: defaultdict(dict))
    descriptions: dict[_Key, str] = {}
    for rank, launched in by_rank.items():
        for call in launched:
            if call.is_point_to_point or call.sequence < 0:
                continue
            key = (call.group, members.get((rank, call.group), ()))
            descriptions[key] = descriptions.get(key) or call.group_description
            calls[key][rank].setdefault(call.sequence, call)
    whole = range(world_size) if isinstance(world_size, int) else sorted(by_rank)
    groups = []
    for key, of_ranks in calls.items():
        name, named = key
        is_default = descriptions[key] == _DEFAULT_GROUP or name == _DEFAULT_GROUP
        in_order = {rank: [some[number] for number in sorted(some)] for rank, some in of_ranks.items()}
        everyone = named or (tuple(whole) if is_default else tuple(sorted(of_ranks)))
        groups.append(_Group(name, descriptions[key], everyone, in_order))
    return sorted(groups, key=lambda group: (-len(group.members), group.name))


def _judge_group(group: _Group, by_rank: Mapping[int, object]) -> Difference | None:
    """What keeps the members of one group waiting; None where nobody waits in it."""
    waiting = {rank: call for rank in group.calls if (call := group.pending(rank)) is not None}
    if not waiting:
        return None
    number = min(call.sequence for call in waiting.values())
    there = {rank: call for rank, calls in group.calls.items() for call in calls if call.sequence == number}
    held = tuple(sorted(rank for rank, call in waiting.items() if call.sequence == number))
    other = _other_call(group, number, there)
    if other is not None:
        return other
    short = [rank for rank in group.members if rank in by_rank and _launched(group, rank) < number]
    if short:
        return _behind(group, there[held[0]], tuple(sorted(short)), held)
    return _not_begun(group, number, there, held) or _all_wait(group, number, there, held, by_rank)


def _launched(group: _Group, rank: int) -> int:
    last = group.last(rank)
    return last.sequence if last is not None else 0


def _other_call(group: _Group, number: int, there: Mapping[int, RecordedCall]) -> Difference | None:
    """Ranks whose collective of this number is another one, or of another size or type."""
    for apart, kind in ((Apart.ELSEWHERE, _operation), (Apart.OTHER_SIZE, _size)):
        kinds = {rank: kind(call) for rank, call in there.items()}
        counted = Counter(kinds.values())
        if len(counted) < 2:
            continue
        usual, most = counted.most_common(1)[0]
        odd = tuple(sorted(rank for rank, found in kinds.items() if found != usual))
        others = tuple(sorted(rank for rank, found in kinds.items() if found == usual))
        if most * 2 == len(kinds):  # no majority: nobody is the odd one
            odd, others = tuple(sorted(kinds)), ()
        shown = list(dict.fromkeys([kinds[odd[0]], usual, *counted]))[:4]
        calls = [
            f"{name_many([rank for rank in sorted(kinds) if kinds[rank] == one])} "
            f"{_is_in([rank for rank in kinds if kinds[rank] == one], one, apart, there)}"
            for one in shown
        ]
        message = f"collective number {number} of {group.words} differs: {', and '.join(calls)}"
        return Difference(apart, odd, others, group.words, message, SOURCE, _evidence(group, number, there))
    return None


def _is_in(ranks: Sequence[int], kind: object, apart: Apart, there: Mapping[int, RecordedCall]) -> str:
    call = there[ranks[0]]
    where = _where(call)
    if apart is Apart.ELSEWHERE:
        return f"{'is' if len(ranks) == 1 else 'are'} in {call.operation}{where}"
    return f"{'passes' if len(ranks) == 1 else 'pass'} {_describe_tensors(call)} to {call.operation}{where}"


def _operation(call: RecordedCall) -> object:
    return call.operation


def _size(call: RecordedCall) -> object:
    if call.operation not in _SAME_INPUT:
        return ()
    return call.input_dtypes, tuple(_elements(size) for size in call.input_sizes)


def _elements(size: tuple[int, ...]) -> int:
    """How many elements; ranks may pass the same number in another shape."""
    count = 1
    for one in size:
        count *= one
    return count


def _describe_tensors(call: RecordedCall) -> str:
    sizes = " and ".join(str(list(size)) for size in call.input_sizes[:3])
    dtypes = "/".join(dict.fromkeys(call.input_dtypes[:3]))
    return f"{dtypes} {sizes}".strip() or "nothing"


def _behind(group: _Group, call: RecordedCall, short: tuple[int, ...], held: tuple[int, ...]) -> Difference:
    message = (
        f"{name_many(short)} {has(short)} not launched {call.operation} number {call.sequence} of"
        f" {group.words}, in which {name_many(held)} {wait(held)}{_where(call)}"
    )
    last = group.last(short[0])
    if last is not None:
        which = "its last there" if len(short) == 1 else f"the last of rank {short[0]} there"
        message += f"; {which} is {last.operation} number {last.sequence}{_where(last)}"
    elif group.calls.get(short[0]) is None:
        message += "; it has launched none there" if len(short) == 1 else "; they have launched none there"
    launched = {rank: found for rank in group.members if (found := group.last(rank)) is not None}
    return Difference(
        Apart.BEHIND, short, held, group.words, message, SOURCE, _evidence(group, call.sequence, launched)
    )


def _not_begun(
    group: _Group, number: int, there: Mapping[int, RecordedCall], held: tuple[int, ...]
) -> Difference | None:
    """Ranks whose GPU has not begun what it has begun on others; unknown for gloo and untimed NCCL."""
    begun = tuple(rank for rank in held if there[rank].state is CallState.STARTED)
    not_begun = tuple(rank for rank in held if there[rank].state is CallState.SCHEDULED)
    if not begun or not not_begun:
        return None
    call = there[begun[0]]
    message = (
        f"{call.operation} number {number} of {group.words} runs on the GPUs of {name_many(begun)},"
        f" and not on {'that' if len(not_begun) == 1 else 'those'} of {name_many(not_begun)}:"
        " something launched before it holds it up"
    )
    return Difference(
        Apart.GPU, not_begun, begun, group.words, message, SOURCE, _evidence(group, number, there)
    )


def _all_wait(
    group: _Group,
    number: int,
    there: Mapping[int, RecordedCall],
    held: tuple[int, ...],
    by_rank: Mapping[int, object],
) -> Difference | None:
    silent = [rank for rank in group.members if rank not in by_rank]
    if silent:
        return None  # one of them may be who is waited for
    call = there[held[0]]
    message = (
        f"all members that were recorded are in {call.operation} number"
        f" {number} of {group.words}{_where(call)}"
    )
    return Difference(Apart.NONE, (), held, group.words, message, SOURCE, _evidence(group, number, there))


def _judge_point_to_point(
    by_rank: Mapping[int, Sequence[RecordedCall]], groups: Sequence[_Group]
) -> list[Difference]:
    """Ranks that do not do their part of a send or receive for which another waits."""
    members = {group.name: group.members for group in groups}
    found = []
    for rank, calls in sorted(by_rank.items()):
        for call in calls:
            ends = _ends(call, members)
            if ends is None or not call.is_pending:
                continue
            source, destination = ends
            peer = destination if source == rank else source
            if peer not in by_rank or peer == rank:
                continue
            wanted = "recv" if source == rank else "send"
            if not any(
                one.operation == wanted and one.is_pending and _ends(one, members) == ends
                for one in by_rank[peer]
            ):
                found.append(_one_sided(rank, peer, call))
                break
    return found


def _ends(call: RecordedCall, members: Mapping[str, tuple[int, ...]]) -> tuple[int, int] | None:
    """The sender and the receiver as ranks of the job."""
    if call.source is None or call.destination is None:
        return None
    of_group = members.get(call.group, ())
    if max(call.source, call.destination) < len(of_group):
        return of_group[call.source], of_group[call.destination]
    return call.source, call.destination


def _one_sided(rank: int, peer: int, call: RecordedCall) -> Difference:
    doing, missing = ("receive from", "sent it") if call.operation == "recv" else ("send to", "asked for it")
    message = f"rank {rank} waits to {doing} rank {peer}{_where(call)}, which has not {missing}"
    return Difference(Apart.BEHIND, (peer,), (rank,), f"the group {call.group}", message, SOURCE)


def _waiting_for_peers(by_rank: Mapping[int, Sequence[RecordedCall]]) -> set[int]:
    return {
        rank
        for rank, calls in by_rank.items()
        if any(call.is_pending and call.source is not None for call in calls)
    }


def _those_to_blame(found: Sequence[Difference], stuck: set[int]) -> tuple[Difference, ...]:
    """The differences without ranks that are late only because they wait themselves, elsewhere."""
    kept = [one for one in found if one.apart is not Apart.BEHIND or stuck.isdisjoint(one.ranks)]
    blamed = {rank for one in kept for rank in one.ranks}
    crossed: list[Difference] = []
    for one in found:
        if one in kept:
            continue
        free = tuple(rank for rank in one.ranks if rank not in stuck)
        if not free:
            crossed.append(one)
        elif not blamed.issuperset(free):
            others = [rank for rank in one.ranks if rank in stuck]
            words = f"{one.message}; {name_many(others)} {wait(others)} in another call"
            kept.append(replace(one, ranks=free, message=words))
    blaming = [one for one in kept if one.apart is not Apart.NONE]
    if blaming or not crossed:
        return tuple(sorted(blaming or kept, key=lambda one: one.apart is Apart.GPU))
    return (*(_cross(one) for one in crossed), *kept)


def _cross(one: Difference) -> Difference:
    message = (
        f"{one.message}; {name_many(one.ranks)} {wait(one.ranks)} in another call: each waits for the other"
    )
    return replace(one, apart=Apart.CROSSED, message=message)


def _absent(groups: Sequence[_Group], by_rank: Mapping[int, object]) -> list[str]:
    """Members of groups of which there is no record."""
    absent = sorted({rank for group in groups for rank in group.members if rank not in by_rank})
    if not absent:
        return []
    return [
        (
            f"{name_many(absent)} left no flight record: what"
            f" {'it' if len(absent) == 1 else 'they'} did is not known"
        )
    ]


def _evidence(group: _Group, number: int, calls: Mapping[int, RecordedCall]) -> tuple[Evidence, ...]:
    shown = sorted(calls)[:8]
    return (
        Evidence("group", group.words, source=SOURCE),
        Evidence("collective_number", number, source=SOURCE),
        *(
            Evidence(f"rank_{rank}", f"{calls[rank].operation} number {calls[rank].sequence}", source=SOURCE)
            for rank in shown
        ),
    )


def _where(call: RecordedCall) -> str:
    """The user's line that made the call, in brackets; empty where the dump has no stacks."""
    own = next((frame for frame in call.frames if not any(part in frame.file for part in _THIRD_PARTY)), None)
    return f" ({own.place})" if own is not None and own.line else ""
