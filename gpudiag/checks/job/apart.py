"""Judges ranks that all wait for others: in different collectives, sizes, peers or steps, or all alike."""

from collections import Counter
from collections.abc import Sequence

from gpudiag.checks.job import activity as at
from gpudiag.checks.job import kinds
from gpudiag.checks.job.facts import facts_of, subject_of
from gpudiag.checks.job.groups import Group, group_key, is_are, name_positions, peer_of, peers_of
from gpudiag.checks.job.groups_made import judge_groups_made
from gpudiag.checks.job.hang_limits import HangLimits
from gpudiag.checks.job.position import Position
from gpudiag.checks.job.subgroups import JOINS, judge_missing_members, lacks_members, members_of
from gpudiag.checks.job.waiters import OTHER_MACHINES, Waiters, describe_call
from gpudiag.checks.job.ways import NAMES_OF_RANKS, explain_apart, is_counter
from gpudiag.model.evidence import HostSubject
from gpudiag.model.finding import Finding
from gpudiag.reference.stacks import changed_counters, own_frames

_APART_SECONDS = 1.0  # calls that do not match will never match
_SIZES_MAY_DIFFER = frozenset(("gather", "scatter", "broadcast_object_list", "send", "recv", "backward"))


def judge_waiters(waiters: Waiters, limits: HangLimits, *, is_whole: bool) -> list[Finding]:
    """Findings for ranks that all wait; `is_whole`: nobody else belongs to the job."""
    groups = waiters.groups
    waited = waiters.since_seconds
    long = waited is None or waited >= _APART_SECONDS
    made = judge_groups_made(waiters)
    if made is not None:
        return [made] if long else _not_yet(waiters, made)
    joining = [group for group in groups if group.head.kind == at.STORE or group.head.call.operation in JOINS]
    if len(groups) > 1 and not _are_whole(groups):
        found = _judge_apart(waiters, groups)
        return [found] if found is not None and long else _not_yet(waiters, found)
    only = groups[0]
    ring = _judge_point_to_point(waiters, groups)
    for judged in (ring, _judge_sizes(waiters, groups), _judge_steps(waiters, only)):
        if judged is not None:
            return [judged] if long else _not_yet(waiters, judged)
    if not is_whole and not joining:
        return _elsewhere(waiters, only, limits)
    kind = kinds.NEVER_JOINED if joining else kinds.ALL_WAIT
    message = (
        (
            f"all {len(waiters.positions)} ranks are in {describe_call(only)}{waiters.since}, with"
            " tensors of one size, and nothing moves"
        )
        if kind is kinds.ALL_WAIT
        else f"{waiters.describe()}, and nothing moves"
    )
    finding = kind.finding(HostSubject(waiters.job.host), message, *facts_of(only))
    limit = limits.still if joining and is_whole else limits.network  # where all are there, it takes no time
    if joining and len(waiters.positions) == 1:  # nobody meets alone: the others may still be starting
        limit = limits.absent
    return [finding] if waited is not None and waited >= limit else _not_yet(waiters, finding)


def _are_whole(groups: Sequence[Group]) -> bool:
    """Whether the groups differ only in the process group of one call, and each of those is complete."""
    same = {(one.head.call.operation, one.head.where, peers_of(one.head)) for one in groups}
    return len(same) == 1 and all(group_key(one.head)[1] == len(one.positions) for one in groups)


def _not_yet(waiters: Waiters, finding: Finding | None) -> list[Finding]:
    if finding is None:
        return []
    seconds = waiters.since_seconds or 0.0
    message = f"{finding.message}; for {seconds:.1f} s, too short to call it a hang"
    return [kinds.NOT_YET.finding(finding.subject, message, *finding.evidence)]


def _elsewhere(waiters: Waiters, only: Group, limits: HangLimits) -> list[Finding]:
    """All that are here wait alike: whoever is to blame is on another machine, or could not be looked at."""
    if (waiters.since_seconds or 0.0) < limits.still:
        return []
    message = f"{waiters.describe()}; the rank that they wait for is on another machine, or could not be read"
    return [
        kinds.NOT_YET.finding(HostSubject(waiters.job.host), message, *facts_of(only), remedy=OTHER_MACHINES)
    ]


def _judge_apart(waiters: Waiters, groups: Sequence[Group]) -> Finding | None:
    """The finding for ranks in different calls: the fewest are named, and both where there are as many."""
    counts = Counter(one.call.operation for group in groups for one in group.positions)
    # Ranks in one operation at two lines meet each other: who is in another one is odd.
    groups = sorted(groups, key=lambda group: (counts[group.head.call.operation], len(group.positions)))
    odd, most = groups[0], groups[-1]
    others = [one for one in groups if one is not odd]
    for judge in (_judge_peers, _judge_order, judge_missing_members, _judge_point_to_point, _judge_sizes):
        found = judge(waiters, groups)
        if found is not None:
            return found
    like_most = [
        one for one in others if one is not most and one.head.call.operation == most.head.call.operation
    ]
    kind, why = explain_apart(odd, most, like_most)
    rest = "; ".join(
        f"{name_positions(one.positions)} {is_are(one.positions, 'waits')} in {describe_call(one)}"
        for one in others[::-1][:2]
    )
    open_groups = [one for one in groups if lacks_members(one)]
    if open_groups:  # who waits in a smaller group is likely innocent
        absent = name_positions(
            [one for other in groups for one in other.positions if other not in open_groups]
        )
        missing = f"; who of {absent} belongs to the smaller group, and is missing in it, could not be read"
        why = f"{missing}{why}" if absent else why
    operations = odd.head.call.operation, most.head.call.operation
    alike = operations[0] == operations[1]
    sizes = [len(one.positions) if alike else counts[one.head.call.operation] for one in (odd, most)]
    tied = sizes[0] == sizes[1] or bool(open_groups)
    message = (
        f"{odd.name} {is_are(odd.positions, 'is')} in {describe_call(odd)} while {rest}{waiters.since}{why}"
    )
    subject = HostSubject(waiters.job.host) if tied else subject_of(odd, waiters.job)
    return kind.finding(subject, message, *facts_of(odd), *facts_of(most))


def _judge_peers(waiters: Waiters, groups: Sequence[Group]) -> Finding | None:
    """The finding for ranks that name different roots in one call at one line; others may have left it."""
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
            f"{odd.name} {is_are(odd.positions, 'calls')} {describe_call(odd)} with {_name_peers(odd)},"
            f" and {most.name} with {_name_peers(most)}{waiters.since}"
        )
        subject = HostSubject(waiters.job.host) if tied else subject_of(odd, waiters.job)
        return kinds.OTHER_PEER.finding(subject, message, *facts_of(odd), *facts_of(most))
    return None


def _judge_order(waiters: Waiters, groups: Sequence[Group]) -> Finding | None:
    """The finding for ranks that call several process groups of the same ranks, each in another order."""
    if len(groups) < 2 or any(group.head.call.frame is None for group in groups):
        return None
    members = {members_of(group.head, waiters.job) for group in groups}
    names = {group_key(group.head)[0] for group in groups}
    ranks = {rank for group in groups for rank in group.ranks}
    if len(members) != 1 or len(names) < len(groups) or "" in names or not ranks <= members.pop():
        return None
    odd, most = groups[0], groups[-1]
    calls = " and ".join(
        f"{group.name} {is_are(group.positions, 'waits')} in {describe_call(group)} of process"
        f" group {group_key(group.head)[0]}"
        for group in groups[:3]
    )
    message = (
        f"{calls}{waiters.since}: these process groups have the same ranks, which call them in another order"
    )
    subject = (
        HostSubject(waiters.job.host)
        if len(odd.positions) == len(most.positions)
        else subject_of(odd, waiters.job)
    )
    return kinds.OTHER_COLLECTIVE.finding(subject, message, *facts_of(odd), *facts_of(most))


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
        peer = peer_of(one)
        if one.rank is not None and peer is not None:
            waits[one.rank] = (peer, one)
    for start in waits:
        chain = [start]
        while chain[-1] in waits and waits[chain[-1]][0] not in chain:
            chain.append(waits[chain[-1]][0])
        if chain[-1] in waits and waits[chain[-1]][0] in chain and len(chain) > 1:
            ring = chain[chain.index(waits[chain[-1]][0]) :]
            tags = {rank: _tag_of(waits[rank][1]) for rank in ring}
            differ = len({*tags.values()}) > 1 and "" not in tags.values()
            ring_words = "; ".join(
                f"rank {rank} in {waits[rank][1].call.operation} with rank {waits[rank][0]}"
                + (f", tag {tags[rank]}" if differ else "")
                + f" ({waits[rank][1].where})"
                for rank in sorted(ring)
            ) + ("; a message with another tag is not taken" if differ else "")
            facts = facts_of(Group((waits[ring[0]][1],)))
            return kinds.OTHER_PEER.finding(
                HostSubject(waiters.job.host),
                f"ranks wait for each other{waiters.since}: {ring_words}",
                *facts,
            )
    return None


def _tag_of(one: Position) -> str:
    """The tag of a send or a receive; empty where it is not known."""
    return dict(one.call.frame.variables).get("tag", "") if one.call.frame is not None else ""


def _judge_sizes(waiters: Waiters, groups: Sequence[Group]) -> Finding | None:
    """The finding for ranks in one call (of one helper) whose tensors differ; a gather's own may."""
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
        f"{odd.name} {is_are(odd.positions, 'is')} in {describe_call(odd)} with {seen[odd.head]}, and"
        f" {most.name} with {usual}{waiters.since}"
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
    """The finding for ranks in one call, some in another step, by their variables or gloo's count."""
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
        rest = tuple(one for one in known if one not in odd.positions)
        return _apart_by(
            waiters,
            only,
            odd,
            f"{is_are(odd.positions, 'is')} {steps} {name_positions(rest)}, by the group's own count",
            is_tied=len(rest) == len(odd.positions),
        )
    for one in only.positions:
        others = [other for other in only.positions if other is not one]
        differing = [changed_counters(other.frames, one.frames) for other in others]
        names = set(differing[0]).intersection(*differing) - NAMES_OF_RANKS if differing else set()
        alike = [
            name
            for name in sorted(names)
            if len({change[name][0] for change in differing}) == 1 and is_counter(name)
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


def _apart_by(waiters: Waiters, only: Group, odd: Group, words: str, *, is_tied: bool = False) -> Finding:
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
    subject = HostSubject(waiters.job.host) if is_tied else subject_of(odd, waiters.job)
    return kind.finding(subject, message, *facts_of(odd))
