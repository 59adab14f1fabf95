"""How ranks came to different calls: an exception, a branch, another step; and who of two is further on."""

import re
from collections.abc import Sequence

from gpudiag.checks.job import kinds
from gpudiag.checks.job.groups import Group, is_are
from gpudiag.checks.job.position import Position
from gpudiag.checks.registry import FindingKind
from gpudiag.model.job import Frame
from gpudiag.reference.stacks import changed_counters, own_frames

_ASKS_RANK = re.compile(
    r"^(else of |after )?if .*(rank|is_(main|global_zero|local_main|first)|master|main_process|process_zero|"
    r"primary|leader|chief)",
    re.IGNORECASE,
)
_HANDLER_FRAMES = 3  # a handler may call what sleeps, or asks a user
NAMES_OF_RANKS = frozenset(("rank", "r", "local_rank", "global_rank", "world_rank", "place", "pid"))


def asks_rank(around: str) -> bool:
    """Whether a statement around a line asks which rank it is: `if rank == 0 (line 3)`."""
    return bool(_ASKS_RANK.search(around))


def explain_apart(odd: Group, most: Group, like_most: Sequence[Group] = ()) -> tuple[FindingKind, str]:
    """The kind, and what the sources show of the way by which the odd ranks came to another call.

    `like_most`: groups that are in the call of the most at another line. A condition that leads to one of
    these lines alone is no reason.
    """
    swallowed = _swallowed_between(odd.head, most.head)
    if swallowed:
        return kinds.SWALLOWED, f"; {swallowed}"
    # Times and losses differ on every rank: only whole numbers show a way.
    differing = [
        f"{name} is {own:.0f} on {odd.name} and {theirs:.0f} on {most.name}"
        for name, (theirs, own) in changed_counters(most.head.frames, odd.head.frames).items()
        if name not in NAMES_OF_RANKS and own.is_integer() and theirs.is_integer()
    ]
    steps = ", ".join(differing[:2])
    # That a rank alone sends or receives is as it should be.
    of_pair = any(one.head.call.operation in ("send", "recv") for one in (odd, most))
    heads = [group.head for group in (most, *like_most)]
    branch = "" if of_pair else _of_all([find_branch(odd.head, one) for one in heads])
    words = (
        "".join(f"; {one}" for one in (branch, steps) if one)
        or _who_is_past(odd, most)
        or _way_past(odd, most)
    )
    if not branch and not of_pair:
        words += _of_all([_condition(odd.head, one) for one in heads])
    return kinds.OTHER_COLLECTIVE, words


def _of_all(words: Sequence[str]) -> str:
    return words[0] if len(set(words)) == 1 else ""


def find_except(frames: Sequence[Frame]) -> str:
    """The `except OSError (line 18)` around the user's line or its callers that led there; or empty."""
    around = (around for frame in frames[:_HANDLER_FRAMES] for around in frame.inside)
    return next((one for one in around if one.startswith("except")), "")


def _divergence(odd: Position, most: Position) -> tuple[Frame, Frame] | None:
    """The frames of one function in which the two are at different lines, the outermost such."""
    for one, other in zip(reversed(own_frames(odd.frames)), reversed(own_frames(most.frames)), strict=False):
        if (one.file, one.function) != (other.file, other.function):
            return None
        if one.line != other.line:
            return one, other
    return None


def _who_is_past(odd: Group, most: Group) -> str:
    """Words for ranks past the line or loop of the others; empty if a loop may have brought them back."""
    frames = _divergence(odd.head, most.head)
    if frames is None:
        return ""
    (behind, line), (past, beyond) = sorted(
        zip((odd, most), frames, strict=True), key=lambda one: one[1].line
    )
    if _loops_of(line) & _loops_of(beyond):
        return ""
    still = f"{behind.name} still {is_are(behind.positions, 'is')}"
    if loop := next((one for one in line.inside if one in _loops_of(line)), ""):
        return f"; {past.name} {is_are(past.positions, 'has')} left the loop `{loop}`, in which {still}"
    where = f"`{line.text}` ({line.place})" if line.text else line.place
    return f"; {past.name} {is_are(past.positions, 'is')} past {where}, where {still}"


def _loops_of(frame: Frame) -> set[str]:
    return {one for one in frame.inside if one.startswith(("for ", "while "))}


def _condition(odd: Position, most: Position) -> str:
    """Words for an `if` that one of the two calls alone stands under; empty for none."""
    frames = _divergence(odd, most)
    for here, there in (frames, frames[::-1]) if frames is not None else ():
        found = next((one for one in here.inside if one.startswith("if ") and one not in there.inside), "")
        if found:
            return f"; {here.place} stands under `{found}`"
    return ""


def _way_past(odd: Group, most: Group) -> str:
    """Words for a condition before both lines that leads away from them; empty for none."""
    frames = _divergence(odd.head, most.head)
    if frames is None:
        return ""
    guards = [one for one in frames[0].inside if one.startswith("after if ") and one in frames[1].inside]
    return (
        f"; a rank that alone takes the `{guards[0].removeprefix('after ')}` before them leaves out calls"
        if guards
        else ""
    )


def _swallowed_between(odd: Position, most: Position) -> str:
    """Words for a `try` that the many are in and the odd one left, or whose `except` it is in."""
    frames = _divergence(odd, most)
    if frames is None:
        return ""
    one, other = frames
    if caught := find_except((one,)):
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
        (
            f"the call stands in a {tried} of {other.place.partition(':')[0]}:"
            " an exception was likely swallowed there"
        )
        if tried
        else ""
    )


def find_branch(odd: Position, most: Position) -> str:
    """Words for an `if` on the rank around one of the calls, or with each call in a branch."""
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
                if asks_rank(around) and around not in others:
                    way = "after" if around.startswith("after ") else "under"
                    return f"{frame.place} stands {way} `{around.removeprefix('after ')}`"
    return ""


def is_counter(name: str) -> bool:
    """Whether a variable is likely called so because it counts the rounds of a loop."""
    return any(
        word in name.lower() for word in ("step", "iter", "epoch", "batch", "idx", "count", "index")
    ) or name in ("i", "j", "n", "it", "s", "b")


def order_of(one: Position, other: Position) -> int:
    """1 where one rank is further on than the other, -1 where it is behind, 0 if unknown.

    By the counters of loops that both are in; if equal, by the lines of the function in which they part.
    """
    for name, (theirs, own) in changed_counters(other.frames, one.frames).items():
        if is_counter(name) and name not in NAMES_OF_RANKS:
            return 1 if own > theirs else -1
    frames = _divergence(one, other)
    if frames is not None:
        return 1 if frames[0].line > frames[1].line else -1
    return _order_on_one_line(one, other)


def _order_on_one_line(one: Position, other: Position) -> int:
    """The order of two functions that one line calls, by their places in it: `synchronise(); total()`."""
    stacks = [tuple(reversed(own_frames(position.frames))) for position in (one, other)]
    caller: Frame | None = None
    for mine, theirs in zip(*stacks, strict=False):
        if mine.function != theirs.function and caller is not None:
            here, there = (_place_in(caller.text, frame.function) for frame in (mine, theirs))
            return 0 if here is None or there is None else (here > there) - (here < there)
        if (mine.file, mine.function, mine.line) != (theirs.file, theirs.function, theirs.line):
            return 0
        caller = mine
    return 0


def _place_in(text: str, function: str) -> int | None:
    """Where a line calls a function; None where it does not, or twice."""
    name = re.escape(function.rpartition(".")[2])
    found = [match.start() for match in re.finditer(rf"\b{name}\(", text)]
    return found[0] if len(found) == 1 else None
