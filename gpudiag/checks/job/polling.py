"""Threads that only ask whether something has come: what they do between two looks is no movement.

A loop that polls is at other lines, counts its attempts and makes new objects; the functions around it do not
run: their lines and variables stay, which distinguishes it from a job that goes on.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

from gpudiag.model.job import Frame, ProcessLook, RankSeen, ThreadLook
from gpudiag.reference.stacks import own_frames

# Libraries of locks on files, which sleep and ask again; their own loops call much else.
_LOCKS = re.compile(r"/(filelock|fasteners|portalocker|lockfile|oslo_concurrency)/")
_FOR = re.compile(r"^(?:async )?for (.+?) in ")
_SPINS_SHARE = 0.5  # of a processor: `sleep(0)` and `pass` take all of it that they get


def only_polled(one: ThreadLook, other: ThreadLook) -> bool:
    """Whether a thread was in the same polling loop at two looks, and nothing around the loop ran."""
    return _compare(one.frames, other.frames, _ran) is True


def stood(one: Sequence[Frame], other: Sequence[Frame]) -> bool:
    """Whether a thread stood between two glances: nothing of the user's ran but a loop that only polls.

    A library's wait may go round. Without a line of the user's nothing shows it. A module's new objects count
    too.
    """
    mine, theirs = own_frames(one), own_frames(other)
    found = _compare(mine, theirs, _has_new_objects)
    return bool(mine) and (len(mine) == len(theirs) if found is None else found)


def _compare(
    one: Sequence[Frame], other: Sequence[Frame], ran: Callable[[Frame, Frame], bool]
) -> bool | None:
    """True: both stacks are in one polling loop, nothing around it ran; False: anything ran; None: alike.

    Where both are in a function of the user's that the loop asks, that function shows it.
    """
    for depth, (earlier, later) in enumerate(zip(reversed(one), reversed(other), strict=False), start=1):
        if (earlier.file, earlier.function) != (later.file, later.function):
            return False
        polls = (earlier.polls and earlier.polls == later.polls) or _LOCKS.search(earlier.file)
        if polls and not all(own_frames(stack[: len(stack) - depth]) for stack in (one, other)):
            return not _came_again(earlier, later)
        if earlier.line != later.line or ran(earlier, later):
            return False
    return None


def _came_again(earlier: Frame, later: Frame) -> bool:
    """Whether a loop that polls was left and begun anew: what the `for` around it counts is another one."""
    if earlier.polls not in earlier.inside:
        return False
    around = earlier.inside[earlier.inside.index(earlier.polls) + 1 :]
    targets = [match[1] for statement in around if (match := _FOR.match(statement)) is not None]
    names = {name for target in targets for name in re.findall(r"\w+", target)}
    before, after = dict(earlier.variables), dict(later.variables)
    return any(before.get(name) != after.get(name) for name in names)


def _ran(earlier: Frame, later: Frame) -> bool:
    """Whether a frame's variables changed; of a module's, which others may change, numbers and words."""
    if earlier.function == "<module>" or not (earlier.mark and later.mark):
        return earlier.variables != later.variables
    return earlier.mark != later.mark


def _has_new_objects(earlier: Frame, later: Frame) -> bool:
    return earlier.mark != later.mark


def find_poll(looks: Sequence[ProcessLook]) -> Frame | None:
    """The frame whose loop the main thread polled in at all looks; None otherwise, or for one look."""
    mains = [look.main for look in looks if look.main is not None]
    if len(mains) < 2 or not all(only_polled(one, other) for one, other in pairwise(mains)):
        return None
    return next((frame for frame in mains[-1].frames if frame.polls or _LOCKS.search(frame.file)), None)


def with_lock_file(seen: RankSeen) -> RankSeen:
    """The rank, with its last look as a sleep for a lock file, where it polls for one and was awake then."""
    last = seen.last
    main = last.main
    if (
        main is None
        or (main.awaited is not None and main.awaited.kind == "lock file")
        or find_poll(seen.looks) is None
    ):
        return seen
    asleep = [one.main for one in seen.looks if one.main is not None and one.main.awaited is not None]
    found = next(
        (one for one in reversed(asleep) if one.awaited is not None and one.awaited.kind == "lock file"), None
    )
    if found is None:
        return seen
    settled = replace(
        main, state=found.state, syscall=found.syscall, waits_in=found.waits_in, awaited=found.awaited
    )
    threads = tuple(settled if one is main else one for one in last.threads)
    return replace(seen, looks=(*seen.looks[:-1], replace(last, threads=threads)))


def spins(looks: Sequence[ProcessLook]) -> bool:
    """Whether a main thread that polls takes most of a processor, or waits for one: it asks again at once."""
    seen = [(look.at_seconds, look.main) for look in looks if look.main is not None]
    (began, first), (ended, last) = seen[0], seen[-1]
    if sum(main.state == "R" for _, main in seen) > len(seen) / 2:
        return True
    return last.cpu_seconds - first.cpu_seconds > _SPINS_SHARE * max(0.1, ended - began)
