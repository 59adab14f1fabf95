"""Ranks that all wait for others, judged: in different collectives, with other sizes or peers, in other steps, or all alike."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gpudiag.checks.job import kinds
from gpudiag.checks.job import position as at
from gpudiag.checks.job.facts import facts_of, subject_of
from gpudiag.checks.job.groups import (
    Group,
    describe_seconds,
    group_alike,
    group_key,
    is_are,
    name_positions,
    name_ranks,
    peers_of,
)
from gpudiag.checks.job.position import Position
from gpudiag.checks.job.stacks import changed_counters, own_frames
from gpudiag.checks.registry import FindingKind
from gpudiag.model.evidence import Evidence, HostSubject
from gpudiag.model.finding import Finding
from gpudiag.model.job import Frame, Job

_ALL_STILL_SECONDS = 5.0  # for a network: a retransmission takes seconds
_APART_SECONDS = 1.0  # calls that do not match will never match
_ASKS_RANK = re.compile(
    r"^(else of )?if .*(rank|is_(main|master|global_zero|local_main)|primary)", re.IGNORECASE
)
_SIZES_MAY_DIFFER = frozenset(("gather", "scatter", "broadcast_object_list", "send", "recv", "backward"))
_NAMES_OF_RANKS = frozenset(("rank", "r", "local_rank", "global_rank", "world_rank", "place", "pid"))
_JOINS = frozenset(
    ("init_process_group", "_store_based_barrier", "rendezvous", "new_group", "_new_process_group_helper")
)


@dataclass(frozen=True, slots=True)
class Waiters:
    """The ranks of a job that wait for others."""

    job: Job
    positions: tuple[Position, ...]
    still_limit_seconds: float

    @property
    def name(self) -> str:
        """`ranks 0, 1 and 3`."""
        return name_positions(self.positions)

    @property
    def groups(self) -> list[Group]:
        """Those in equal calls, the smallest groups first."""
        return group_alike(self.positions)

    @property
    def since_seconds(self) -> float | None:
        """For how long all of them have waited."""
        known = [one.since_seconds for one in self.positions if one.since_seconds is not None]
        return min(known) if known else None

    @property
    def since(self) -> str:
        """`, 41 s so far`, or nothing."""
        seconds = self.since_seconds
        return f", {describe_seconds(seconds)} so far" if seconds is not None and seconds >= 1 else ""

    def describe_call(self) -> str:
        """`the all_reduce (train.py:10)`."""
        return " and ".join(describe_call(group) for group in self.groups[::-1][:2])

    def describe(self) -> str:
        """`ranks 0 and 1 wait in the all_reduce (train.py:10), 41 s so far`."""
        return f"{self.name} {is_are(self.positions, 'waits')} in {self.describe_call()}{self.since}"

    def facts(self) -> tuple[Evidence, ...]:
        """The lines of those that wait, for evidence."""
        return tuple(
            Evidence(
                f"line of {group.name}", f"{group.head.where}: {group.head.call.own.text}", source="py-spy"
            )
            for group in self.groups[::-1][:2]
            if group.head.call.own is not None
        )


def describe_call(group: Group) -> str:
    """`the all_reduce (train.py:10 in main)`, `the store (train.py:10)`."""
    head = group.head
    what = (
        "the store's wait for a key"
        if head.kind == at.STORE
        else f"the {head.call.operation or 'collective'}"
    )
    if not head.call.operation and head.kind != at.STORE:
        what = "the operation"
    size = group_key(head)[1]
    of = f" of a group of {size}" if size and _is_part(group, size) else ""
    return f"{what}{of} ({head.where})" if head.where else f"{what}{of}"


def _is_part(group: Group, size: int) -> bool:
    return group_key(group.head)[0] not in ("", "0") and size > 0


def judge_waiters(waiters: Waiters, *, is_whole: bool) -> list[Finding]:
    """Findings for ranks that all wait; `is_whole`: nobody else belongs to the job."""
    groups = waiters.groups
    waited = waiters.since_seconds
    long = waited is None or waited >= _APART_SECONDS
    joining = [
        group for group in groups if group.head.kind == at.STORE or group.head.call.operation in _JOINS
    ]
    if len(groups) > 1 and not _are_whole(groups):
        found = _judge_apart(waiters, groups)
        return [found] if found is not None and long else _not_yet(waiters, found)
    only = groups[0]
    ring = _judge_point_to_point(waiters, groups)
    for judged in (ring, _judge_sizes(waiters, groups), _judge_steps(waiters, only)):
        if judged is not None:
            return [judged] if long else _not_yet(waiters, judged)
    if not is_whole and not joining:
        return _elsewhere(waiters, only)
    kind = kinds.NEVER_JOINED if joining else kinds.ALL_WAIT
    message = (
        f"all {len(waiters.positions)} ranks are in {describe_call(only)}{waiters.since}, with tensors of one size, and nothing moves"
        if kind is kinds.ALL_WAIT
        else f"{waiters.describe()}, and nothing moves"
    )
    finding = kind.finding(HostSubject(waiters.job.host), message, *facts_of(only))
    return [finding] if waited is not None and waited >= _ALL_STILL_SECONDS else _not_yet(waiters, finding)


def _are_whole(groups: Sequence[Group]) -> bool:
    """Whether the groups differ only in the process group of one call, and each process group has all its ranks in it."""
    same = {(one.head.call.operation, one.head.where, peers_of(one.head)) for one in groups}
    return len(same) == 1 and all(group_key(one.head)[1] == len(one.positions) for one in groups)


def _not_yet(waiters: Waiters, finding: Finding | None) -> list[Finding]:
    if finding is None:
        return []
    seconds = waiters.since_seconds or 0.0
    message = f"{finding.message}; for {seconds:.1f} s, too short to call it a hang"
    return [kinds.NOT_YET.finding(finding.subject, message, *finding.evidence)]


def _elsewhere(waiters: Waiters, only: Group) -> list[Finding]:
    """All that are here wait alike: whoever is to blame is on another machine, or could not be looked at."""
    if (waiters.since_seconds or 0.0) < waiters.still_limit_seconds:
        return []
    message = f"{waiters.describe()}; the rank that they wait for is on another machine, or could not be read"
    return [
        kinds.NOT_YET.finding(HostSubject(waiters.job.host), message, *facts_of(only), remedy=_OTHER_MACHINES)
    ]


_OTHER_MACHINES = "Look at all machines of the job at once: `srun --overlap --jobid JOB --ntasks-per-node 1 gpudiag hang`; or `gpudiag hang --json` on each, and `gpudiag merge` of the files."


def _judge_apart(waiters: Waiters, groups: Sequence[Group]) -> Finding | None:
    """The finding for ranks in different calls: the fewest are named, and both where there are as many."""
    odd, most = groups[0], groups[-1]
    others = [one for one in groups if one is not odd]
    for judge in (_judge_peers, _judge_left_out, _judge_point_to_point, _judge_sizes):
        found = judge(waiters, groups)
        if found is not None:
            return found
    kind, why = _explain(odd, most)
    rest = "; ".join(
        f"{name_positions(one.positions)} {is_are(one.positions, 'waits')} in {describe_call(one)}"
        for one in others[::-1][:2]
    )
    tied = len(odd.positions) == len(most.positions)
    message = (
        f"{odd.name} {is_are(odd.positions, 'is')} in {describe_call(odd)} while {rest}{waiters.since}{why}"
    )
    subject = HostSubject(waiters.job.host) if tied else subject_of(odd, waiters.job)
    return kind.finding(subject, message, *facts_of(odd), *facts_of(most))


def _judge_left_out(waiters: Waiters, groups: Sequence[Group]) -> Finding | None:
    """The finding for ranks that left a call of a smaller group out, and wait further on; who waits in it is innocent."""
    for waits in groups:
        frame = waits.head.call.frame
        group = frame.group if frame is not None else None
        if group is None or not group.ranks or not set(waits.ranks) < set(group.ranks):
            continue
        absent = [one for one in waiters.positions if one.rank in set(group.ranks) - set(waits.ranks)]
        further = [one for one in absent if _is_further(one, waits.head)]
        if not further or len(further) + len(waits.positions) < group.size:
            continue
        guilty = group_alike(further)[0]
        kind, why = _explain(guilty, waits)
        members = name_ranks(group.ranks)
        message = (
            f"{guilty.name} {is_are(guilty.positions, 'is')} in {describe_call(guilty)} and not in the {waits.head.call.operation} of "
            f"{members} ({waits.head.where}) that {waits.name} {is_are(waits.positions, 'waits')} in{waiters.since}{why}"
        )
        return kind.finding(subject_of(guilty, waiters.job), message, *facts_of(guilty), *facts_of(waits))
    return None


def _is_further(one: Position, other: Position) -> bool:
    """Whether one rank is at a later line than the other, in the function in which they part."""
    frames = _divergence(one, other)
    return frames is not None and frames[0].line > frames[1].line


def _explain(odd: Group, most: Group) -> tuple[FindingKind, str]:
    """The kind, and what the sources show of the way by which the odd ranks came to another call."""
    swallowed = _swallowed_between(odd.head, most.head)
    if swallowed:
        return kinds.SWALLOWED, f"; {swallowed}"
    counters = changed_counters(most.head.frames, odd.head.frames)
    steps = ", ".join(
        f"{name} is {b:g} there and {a:g} here"
        for name, (a, b) in list(counters.items())[:2]
        if name not in _NAMES_OF_RANKS
    )
    branch = _branch(odd.head, most.head)
    said = "".join(f"; {one}" for one in (branch, steps) if one)
    return kinds.OTHER_COLLECTIVE, said


def _divergence(odd: Position, most: Position) -> tuple[Frame, Frame] | None:
    """The frames of one function in which the two are at different lines, the outermost such."""
    for one, other in zip(reversed(own_frames(odd.frames)), reversed(own_frames(most.frames)), strict=False):
        if (one.file, one.function) != (other.file, other.function):
            return None
        if one.line != other.line:
            return one, other
    return None


def _swallowed_between(odd: Position, most: Position) -> str:
    """Words for a `try` that goes on, in which the many are and the odd one is not, or whose `except` the odd one is in."""
    frames = _divergence(odd, most)
    if frames is None:
        return ""
    one, other = frames
    caught = next((around for around in one.inside if around.startswith("except")), "")
    if caught:
        return f"it is in the `{caught}` of {one.place.partition(':')[0]}: an exception took it there"
    tried = next(
        (around for around in other.inside if around.startswith("try") and around not in one.inside), ""
    )
    if not tried:  # the call may stand in a function that is called from within the try
        inner = [frame for frame in own_frames(most.frames) if frame.file == other.file]
        tried = next(
            (a for frame in inner for a in frame.inside if a.startswith("try") and a not in one.inside), ""
        )
    return (
        f"the call stands in a {tried} of {other.place.partition(':')[0]}: an exception was likely swallowed there"
        if tried
        else ""
    )


def _branch(odd: Position, most: Position) -> str:
    """Words for an `if` on the rank around one of the two calls, or one of whose branches each of them is in."""
    frames = _divergence(odd, most)
    if frames is not None:
        for here, there in (frames, frames[::-1]):
            found = next((one for one in here.inside if f"else of {one}" in there.inside), "")
            if found:
                return f"one call stands under `{found}`, the other under its `else`"
    for position, other in ((odd, most), (most, odd)):
        others = {around for frame in own_frames(other.frames) for around in frame.inside}
        for frame in own_frames(position.frames):
            for around in frame.inside:
                if _ASKS_RANK.search(around) and around not in others:
                    return f"{frame.place} stands under `{around}`"
    return ""


def _judge_peers(waiters: Waiters, groups: Sequence[Group]) -> Finding | None:
    """The finding for ranks in one call at one line that name different roots in it; others may have left the call by now."""
    calls: dict[tuple[str, str], list[Group]] = {}
    for group in groups:
        if peers_of(group.head):
            calls.setdefault((group.head.call.operation, group.head.where), []).append(group)
    for same in calls.values():
        if len({peers_of(one.head) for one in same}) < 2:
            continue
        inside = {rank for one in same for rank in one.ranks}
        # A root that is not in the call is one that nobody else named.
        lost = [one for one in same if not _roots(one) & inside]
        odd = lost[0] if len(lost) == 1 else same[0]
        most = next(one for one in same[::-1] if one is not odd)
        tied = len(lost) != 1 and len(odd.positions) == len(most.positions)
        message = (
            f"{odd.name} {is_are(odd.positions, 'calls')} {describe_call(odd)} with {_name_peers(odd)}, and {most.name} "
            f"with {_name_peers(most)}{waiters.since}"
        )
        subject = HostSubject(waiters.job.host) if tied else subject_of(odd, waiters.job)
        return kinds.OTHER_PEER.finding(subject, message, *facts_of(odd), *facts_of(most))
    return None


def _name_peers(group: Group) -> str:
    named = dict(peers_of(group.head))
    own = {name: value for name, value in named.items() if not name.startswith("group_")} or named
    return ", ".join(f"{name}={value}" for name, value in own.items())


def _roots(group: Group) -> set[int]:
    return {
        int(value) for name, value in peers_of(group.head) if value.isdecimal() and name in ("src", "dst")
    }


def _judge_point_to_point(waiters: Waiters, _: Sequence[Group]) -> Finding | None:
    """The finding for ranks that wait in sends or receives for each other, in a ring or in a chain."""
    waits: dict[int, tuple[int, Position]] = {}
    for one in waiters.positions:
        peer = _peer(one)
        if one.rank is not None and peer is not None:
            waits[one.rank] = (peer, one)
    for start in waits:
        chain = [start]
        while chain[-1] in waits and waits[chain[-1]][0] not in chain:
            chain.append(waits[chain[-1]][0])
        if chain[-1] in waits and waits[chain[-1]][0] in chain and len(chain) > 1:
            ring = chain[chain.index(waits[chain[-1]][0]) :]
            said = "; ".join(
                f"rank {rank} in {waits[rank][1].call.operation} with rank {waits[rank][0]} ({waits[rank][1].where})"
                for rank in sorted(ring)
            )
            facts = facts_of(Group((waits[ring[0]][1],)))
            return kinds.OTHER_PEER.finding(
                HostSubject(waiters.job.host), f"ranks wait for each other{waiters.since}: {said}", *facts
            )
    return None


def _peer(one: Position) -> int | None:
    frame = one.call.frame
    if one.call.operation not in ("send", "recv") or frame is None:
        return None
    names = ("dst", "group_dst") if one.call.operation == "send" else ("src", "group_src")
    values = dict(frame.variables)
    return next((int(values[name]) for name in names if values.get(name, "").isdecimal()), None)


def _judge_sizes(waiters: Waiters, groups: Sequence[Group]) -> Finding | None:
    """The finding for ranks in one call whose tensors differ; a gather's own may differ, and are not compared.

    A call in a helper is one call, wherever the helper was called from.
    """
    positions = [one for group in groups for one in group.positions]
    calls = {(one.kind, one.call.operation, one.where, group_key(one)) for one in positions}
    seen = {one: _tensors(one) for one in positions}
    counts = Counter(value for value in seen.values() if value)
    if len(calls) > 1 or len(counts) < 2 or positions[0].call.operation in _SIZES_MAY_DIFFER:
        return None
    usual = counts.most_common(1)[0][0]
    odd = Group(tuple(one for one, value in seen.items() if value and value != usual))
    most = Group(tuple(one for one, value in seen.items() if value == usual))
    tied = len(odd.positions) == len(most.positions)
    message = (
        f"{odd.name} {is_are(odd.positions, 'is')} in {describe_call(odd)} with {seen[odd.head]}, and {most.name} with "
        f"{usual}{waiters.since}"
    )
    subject = HostSubject(waiters.job.host) if tied else subject_of(odd, waiters.job)
    return kinds.OTHER_SIZE.finding(subject, message, *facts_of(odd), *facts_of(most))


def _tensors(one: Position) -> str:
    """`float32 [1000]` of the call's tensors; of the user's variables where the call itself shows none."""
    frame = one.call.frame
    if frame is not None:
        found = frame.tensors
    else:  # work that was begun earlier: what the function that waits for it has in its variables
        found = one.call.own.tensors if one.call.own is not None and not one.call.library else ()
    return ", ".join(f"{tensor.dtype} [{', '.join(map(str, tensor.shape))}]" for _, tensor in found)


def _judge_steps(waiters: Waiters, only: Group) -> Finding | None:
    """The finding for ranks in one call, some of them in another step, by their variables or gloo's own count."""
    calls = {
        one: frame.group.calls
        for one in only.positions
        if (frame := one.call.frame) is not None and frame.group is not None
    }
    known = {one: count for one, count in calls.items() if count is not None}
    if len(known) == len(only.positions) and len(set(known.values())) > 1:
        usual = Counter(known.values()).most_common(1)[0][0]
        odd = Group(tuple(one for one, count in known.items() if count != usual))
        apart = (known[odd.head] or 0) - usual
        steps = (
            f"{abs(apart)} {'call' if abs(apart) == 1 else 'calls'} {'ahead of' if apart > 0 else 'behind'}"
        )
        return _apart_by(
            waiters, only, odd, f"{is_are(odd.positions, 'is')} {steps} the others, by the group's own count"
        )
    for one in only.positions:
        others = [other for other in only.positions if other is not one]
        differing = [changed_counters(other.frames, one.frames) for other in others]
        names = set(differing[0]).intersection(*differing) - _NAMES_OF_RANKS if differing else set()
        alike = [
            name
            for name in sorted(names)
            if len({change[name][0] for change in differing}) == 1 and _is_counter(name)
        ]
        if alike and len(others) > 1:
            name = alike[0]
            usual_value, own_value = differing[0][name]
            return _apart_by(
                waiters,
                only,
                Group((one,)),
                f"is in another step: its `{name}` is {own_value:g}, and {usual_value:g} on the others",
            )
    return None


def _is_counter(name: str) -> bool:
    return any(
        word in name.lower() for word in ("step", "iter", "epoch", "batch", "idx", "count", "index")
    ) or name in ("i", "j", "n", "it", "s", "b")


def _apart_by(waiters: Waiters, only: Group, odd: Group, words: str) -> Finding:
    tried = next(
        (
            around
            for frame in own_frames(odd.head.frames)
            for around in frame.inside
            if around.startswith("try")
        ),
        "",
    )
    kind = kinds.SWALLOWED if tried else kinds.CALLS_APART
    why = f"; the call stands in a {tried}: an exception was likely swallowed there" if tried else ""
    message = f"{odd.name} {words}; all wait in {describe_call(only)}{waiters.since}{why}"
    return kind.finding(subject_of(odd, waiters.job), message, *facts_of(odd))
