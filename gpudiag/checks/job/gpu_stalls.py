"""Judges ranks that all wait, some for GPUs: who is behind by NCCL's counts or sizes, one GPU, or unknown.

A GPU executes in order: a rank that waits for it waits for its own kernel, or for ranks that have not come to
a collective before it. Counts of launches show which; a rank that waits for a GPU at an earlier place may
still come, and is healthy within the limit.
"""

from collections.abc import Sequence

from gpudiag.checks.job import kinds
from gpudiag.checks.job.differences import Apart, Difference
from gpudiag.checks.job.facts import facts_of, subject_of
from gpudiag.checks.job.gpu_use import describe_use, find_odd_gpu, gpu_works
from gpudiag.checks.job.gpu_waits import named_tensors
from gpudiag.checks.job.groups import Group, describe_seconds, group_alike, is_are, name_positions
from gpudiag.checks.job.hang_limits import HangLimits
from gpudiag.checks.job.library_evidence import LibraryEvidence
from gpudiag.checks.job.movement import backward_seconds_ago
from gpudiag.checks.job.position import Position
from gpudiag.checks.job.waiters import OTHER_MACHINES, Waiters
from gpudiag.checks.job.ways import NAMES_OF_RANKS, find_branch, is_counter, order_of
from gpudiag.checks.registry import FindingKind
from gpudiag.model.evidence import Evidence, HostSubject
from gpudiag.model.finding import Finding
from gpudiag.model.job import Frame
from gpudiag.reference.stacks import changed_counters, own_frames

_APART_SECONDS = 0.9  # of two looks a second apart: counts that do not fit will never fit
_LOOPS = ("for ", "while ", "async for ")


def judge_gpu_stall(waiters: Waiters, libraries: LibraryEvidence, limits: HangLimits) -> list[Finding]:
    """The finding for ranks that all wait, at least one of them for its GPU or spinning in a collective."""
    apart = libraries.find(Apart.BEHIND, Apart.ELSEWHERE)
    if apart is not None:
        return [_judge_counts(waiters, apart, limits) or _judge_elsewhere(waiters, apart)]
    return [
        _judge_places(waiters, limits)
        or _judge_sizes(waiters, limits)
        or _judge_alike(waiters, libraries, limits)
    ]


def _judge_counts(waiters: Waiters, apart: Difference, limits: HangLimits) -> Finding | None:
    """The finding for ranks whose launch counts stand still and differ; None unless all of them wait."""
    behind = [one for one in waiters.positions if one.rank in apart.ranks]
    ahead = [one for one in waiters.positions if one.rank in apart.waiting]
    if not behind or not ahead:
        return None
    if apart.apart is Apart.BEHIND and all(one.waits_for_gpu and _may_come(one, ahead[0]) for one in behind):
        return _works_alone(waiters, behind, ahead, limits, f"; {apart.message}")
    odd, most = _choose_odd(behind, ahead)
    counts = Evidence(apart.source, apart.message, source=apart.source)
    # Whoever waits in the call itself launches nothing more; only time shows a kernel that runs long from a
    # wait.
    limit = limits.still if any(one.waits_for_gpu for one in behind) else _APART_SECONDS
    facts = (counts, *apart.evidence, *_facts(odd), *_facts(most))
    message = f"{_describe(odd, most)}, while {_describe(most, odd)}{waiters.since}; {apart.message}"
    return _timed(kinds.OTHER_COLLECTIVE, waiters, odd, message, limit, facts)


def _judge_elsewhere(waiters: Waiters, apart: Difference) -> Finding:
    """The finding where the ranks that differ were not looked at: what they do decides."""
    message = (
        f"{waiters.describe_for_gpu()}{waiters.since}; {apart.message}; what that"
        " rank does could not be seen from here"
    )
    counts = Evidence(apart.source, apart.message, source=apart.source)
    return kinds.UNKNOWN.finding(
        HostSubject(waiters.job.host),
        message,
        counts,
        *apart.evidence,
        *_facts(waiters.positions),
        remedy=OTHER_MACHINES,
    )


def _may_come(behind: Position, ahead: Position) -> bool:
    """Whether a rank that waits for its GPU stands before the other's call, in the same step."""
    works = gpu_works(behind.seen)
    if works is not None and works:
        return True
    if _shape(behind) == _shape(ahead):
        return False
    return order_of(behind, ahead) < 0


def _shape(one: Position) -> tuple[tuple[str, str, int], ...]:
    return tuple((frame.file, frame.function, frame.line) for frame in own_frames(one.frames))


def _choose_odd(
    behind: Sequence[Position], ahead: Sequence[Position]
) -> tuple[list[Position], list[Position]]:
    """Whom to name: the fewer; else those that left the others' loop; else those a step ahead."""
    if len(behind) != len(ahead):
        few, many = sorted((list(behind), list(ahead)), key=len)
        return few, many
    if _left_loop(behind[0], ahead[0]):
        return list(behind), list(ahead)
    if _left_loop(ahead[0], behind[0]) or _step_apart(ahead[0], behind[0]):
        return list(ahead), list(behind)
    return list(behind), list(ahead)


def _judge_places(waiters: Waiters, limits: HangLimits) -> Finding | None:
    """The finding by lines alone, without counts: ranks that wait for their GPUs before the others' call."""
    in_call = [one for one in waiters.positions if not one.waits_for_gpu]
    before = [one for one in waiters.positions if one.waits_for_gpu]
    if not in_call or not before or not all(_may_come(one, in_call[0]) for one in before):
        return None
    return _works_alone(waiters, before, in_call, limits, "")


def _works_alone(
    waiters: Waiters, alone: Sequence[Position], others: Sequence[Position], limits: HangLimits, why: str
) -> Finding:
    """The finding for ranks that wait for their GPUs before the others' call: shown at once, blamed later.

    If the others have left a loop in which these are, it had fewer steps there: no kernel takes so long.
    """
    left = bool(_left_loop(others[0], alone[0])) and not gpu_works(alone[0].seen)
    limit = min(limits.work, limits.idle) if left else limits.work
    long = (waiters.since_seconds or 0.0) >= limit
    kind = kinds.WORKS_ALONE if not long else kinds.OTHER_COLLECTIVE if left else kinds.WORKS_LONG
    option = "" if left else " (--limit)"
    after = (
        f"; for more than {limit:g} s{option}"
        if long
        else f"; a GPU may work that long: after {limit:g} s{option} it is called a hang"
    )
    use = "".join(f"; its GPU: {words}" for words in [describe_use(alone[0].seen)] if words)
    message = f"{_describe(alone, others)}, while {_describe(others, alone)}{waiters.since}{why}{use}{after}"
    named = others if long and left else alone
    return kind.finding(
        subject_of(Group(tuple(named)), waiters.job), message, *_facts(alone), *_facts(others)
    )


def _judge_sizes(waiters: Waiters, limits: HangLimits) -> Finding | None:
    """The finding for ranks that wait at one line for one tensor's value, of another size on some of them.

    A batch's size may differ: so the number of dimensions must too, or another tensor must be equal on all.
    """
    if len({_shape(one) for one in waiters.positions}) != 1 or len(waiters.positions) < 2:
        return None
    frames = {one: one.call.own for one in waiters.positions if one.call.own is not None}
    if len(frames) < len(waiters.positions):
        return None
    for name in named_tensors(next(iter(frames.values()))):
        by_size: dict[str, list[Position]] = {}
        for one, frame in frames.items():
            by_size.setdefault(_tensor(frame, name), []).append(one)
        if len(by_size) < 2 or "" in by_size or not _shows_mismatch(list(frames.values()), name):
            continue
        (odd_size, odd), *_, (usual, most) = sorted(by_size.items(), key=lambda pair: len(pair[1]))
        message = (
            f"{name_positions(odd)} {is_are(odd, 'waits')} for {_their(odd)} at {odd[0].where} for `{name}`,"
            f" {odd_size}, and {name_positions(most)} for {usual}{waiters.since}: ranks have likely passed"
            " tensors of other sizes to one collective"
        )
        facts = (*_facts(odd), *_facts(most))
        tied = len(odd) == len(most)
        return _timed(kinds.OTHER_SIZE, waiters, odd, message, limits.still, facts, is_tied=tied)
    return None


def _shows_mismatch(frames: Sequence[Frame], name: str) -> bool:
    shapes = {dict(frame.tensors)[name].shape for frame in frames}
    if len({len(shape) for shape in shapes}) > 1:
        return True
    others = {other for frame in frames for other, seen in frame.tensors if seen.shape} - {name}
    return any(len({_tensor(frame, other) for frame in frames}) == 1 for other in others)


def _tensor(frame: Frame, name: str) -> str:
    """`float32 [64, 1024]`; empty where the frame has no such tensor."""
    seen = dict(frame.tensors).get(name)
    return "" if seen is None else f"{seen.dtype} [{', '.join(map(str, seen.shape))}]"


def _judge_alike(waiters: Waiters, libraries: LibraryEvidence, limits: HangLimits) -> Finding:
    """The finding for ranks that all wait with equal or unknown counts: one odd GPU, or nobody known."""
    positions, waited = waiters.positions, waiters.since_seconds or 0.0
    odd = find_odd_gpu(waiters.job)
    if odd is not None:
        guilty = [one for one in positions if one.rank == odd.rank]
        if guilty:
            message = (
                f"{_describe(guilty, positions)}{waiters.since}; {odd.words}: it is not in"
                " the collective that they wait in"
            )
            return _timed(kinds.GPU_WAITS, waiters, guilty, message, limits.still, _facts(guilty))
    groups = group_alike(positions)
    steps = _describe_steps(positions)
    waits = "; ".join(
        _describe(group.positions, positions, with_step=not steps) for group in groups[::-1][:3]
    )
    branch = find_branch(groups[0].head, groups[-1].head)
    equal = libraries.find(Apart.NONE)
    counts = f"; {equal.message} ({equal.source})" if equal is not None else ""
    uses = _describe_uses(positions)
    idle = [backward_seconds_ago(one.seen.looks) for one in positions]
    backward = min((one for one in idle if one is not None), default=0.0) if None not in idle else 0.0
    since_backward = (
        f"; no backward pass has run for {describe_seconds(backward)}" if backward >= limits.idle else ""
    )
    message = (
        f"{waits}{waiters.since}, and nothing else of the job"
        f" moves{steps}{f'; {branch}' if branch else ''}{counts}{uses}{since_backward}: "
    )
    facts = tuple(fact for group in groups[::-1][:2] for fact in facts_of(group))
    subject = subject_of(groups[-1], waiters.job) if len(groups) == 1 else HostSubject(waiters.job.host)
    several = len(positions) > 1
    if (waited >= limits.idle or backward >= limits.work) and steps:
        odd_ones, _ = _choose_odd(
            [positions[0]], [one for one in positions if _step_apart(one, positions[0])][:1] or positions[:1]
        )
        return kinds.CALLS_APART.finding(
            subject_of(Group(tuple(odd_ones)), waiters.job), f"{message}they do not meet again", *facts
        )
    if waited >= limits.idle or backward >= limits.work:
        which = (
            "one of the GPUs does not end its kernel, or does not begin one"
            if several
            else "its kernel does not end"
        )
        return kinds.GPU_WAITS.finding(subject, f"{message}{which}", *facts)
    which = (
        "a GPU runs a kernel that is long, or never ends" if several else "its kernel is long, or never ends"
    )
    if branch:
        which = f"a rank makes a collective alone there, or {which}"
    return kinds.UNKNOWN.finding(subject, f"{message}{which}", *facts)


def _timed(
    kind: FindingKind,
    waiters: Waiters,
    odd: Sequence[Position],
    message: str,
    limit: float,
    facts: Sequence[Evidence],
    *,
    is_tied: bool = False,
) -> Finding:
    """The finding; not yet called a hang where they have waited for less than the limit."""
    waited = waiters.since_seconds or 0.0
    subject = HostSubject(waiters.job.host) if is_tied else subject_of(Group(tuple(odd)), waiters.job)
    if waited >= limit:
        return kind.finding(subject, message, *facts)
    short = f"{message}; for {waited:.1f} s, too short to call it a hang"
    return kinds.NOT_YET.finding(subject, short, *facts)


def _facts(positions: Sequence[Position]) -> tuple[Evidence, ...]:
    return facts_of(Group(tuple(positions)))


def _their(positions: Sequence[Position]) -> str:
    return "its GPU" if len(positions) == 1 else "their GPUs"


def _describe(positions: Sequence[Position], others: Sequence[Position], *, with_step: bool = True) -> str:
    """`rank 1 waits in barrier at train.py:110, and has left the loop of train.py:85 of rank 0`."""
    head = positions[0]
    words = is_are(positions, head.words)
    at = f" at {head.where}" if head.where else ""
    step = _name_step(head) if with_step else ""
    left = _left_loop(head, others[0]) if others and others[0] is not head else ""
    loop = f", and {is_are(positions, 'has')} left the {left}" if left else step
    return f"{name_positions(positions)} {words}{at}{loop}"


def _name_step(one: Position) -> str:
    """` (step 20)`, by the counter of the innermost loop that has one; empty where none is seen."""
    for frame in own_frames(one.frames):
        looped = any(around.startswith(_LOOPS) for around in frame.inside)
        for name, value in frame.variables if looped else ():
            targets = [around.split(" in ")[0] for around in frame.inside if around.startswith("for ")]
            if (
                value.isdecimal()
                and name not in NAMES_OF_RANKS
                and any(name in target.split() for target in targets)
            ):
                return f" ({name} {value})"
    return ""


def _left_loop(one: Position, other: Position) -> str:
    """`loop of train.py:85`, which this rank has left and another one has not; empty where it is not so."""
    for mine, theirs in zip(
        reversed(own_frames(one.frames)), reversed(own_frames(other.frames)), strict=False
    ):
        if (mine.file, mine.function) != (theirs.file, theirs.function):
            return ""
        if mine.line == theirs.line:
            continue
        left = [around for around in theirs.inside if around.startswith(_LOOPS) and around not in mine.inside]
        if not left or mine.line < theirs.line:
            return ""
        line = left[-1].rpartition("(line ")[2].partition(")")[0]
        step = _name_step(other).strip(" ()")
        where = f" (it is at {step})" if step else ""
        return f"loop of {theirs.file.rpartition('/')[2]}:{line} that {name_positions((other,))} is in{where}"
    return ""


def _step_apart(one: Position, other: Position) -> bool:
    """Whether a rank is in a later step than another, by the counters of their loops."""
    return any(
        own > theirs and is_counter(name) and name not in NAMES_OF_RANKS
        for name, (theirs, own) in changed_counters(other.frames, one.frames).items()
    )


def _describe_steps(positions: Sequence[Position]) -> str:
    """`; step is 21 on rank 1 and 20 on rank 0, so ...`, where counters differ."""
    first = positions[0]
    for one in positions[1:]:
        for name, (a, b) in changed_counters(first.frames, one.frames).items():
            if is_counter(name) and name not in NAMES_OF_RANKS:
                return (
                    f"; {name} is {b:g} on {name_positions((one,))} and {a:g} on {name_positions((first,))}"
                )
    return ""


def _describe_uses(positions: Sequence[Position]) -> str:
    """What NVML shows of their GPUs, equal words once."""
    by_use = {describe_use(one.seen): one for one in positions}
    return "".join(
        f"; GPU of {name_positions((one,))}: {words}" for words, one in list(by_use.items())[:2] if words
    )
