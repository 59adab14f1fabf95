"""Whether something of a rank moves from look to look: its line, its variables, its files, a backward pass.

Processor time alone is nothing: a wait for a GPU takes all of a processor, as work does.
"""

import re
from collections.abc import Sequence
from itertools import pairwise

from gpudiag.checks.job.polling import only_polled
from gpudiag.model.job import Frame, ProcessLook, ThreadLook
from gpudiag.model.reading import Missing
from gpudiag.reference.stacks import changed_counters, shape_of

_STILL_CPU_SECONDS = 0.01  # of the main thread between two looks: a wake-up costs less, a step more
_WAKES_SHARE = 0.04  # of a processor, by a main thread that only wakes up to look
_BUSY_SHARE = 0.1  # of a processor, by other threads or by children
_BUSY_BYTES = 1 << 16
_SAME_MOMENT_SECONDS = 0.2  # by which two looks differ at the end of one sleep, on a busy machine
_MOST_STEPS = 1_000_000  # between two looks: a variable that grows by more was read while it changed
_GLOO_THREAD = (
    "pt_gloo_runloop"  # makes the collectives of a process group, and sleeps in them and between them
)
# What counts how often something was tried shows that nothing was done.
_OF_TRIES = re.compile(r"attempt|retry|retries|tries|backoff|failures", re.IGNORECASE)
# TensorPipe's, of torch's RPC: it asks its shared memory without an end, whether there is a message or not.
_SPINNING_THREAD = "TP_SHM"
_RPC_THREAD = "pt_thread_pool"  # those of torch's RPC, which answer calls and take answers
_BACKWARD_THREAD = "pt_autograd"  # torch's, one of each GPU, which sleeps between two backward passes


def moved(looks: Sequence[ProcessLook]) -> bool:
    """Whether anything of a rank but its processor time moved; True where there is one look alone."""
    seen = [look for look in looks if look.main is not None]
    return len(seen) < 2 or any(_moved_between(one, other) for one, other in pairwise(seen))


def still_since_seconds(looks: Sequence[ProcessLook]) -> float:
    """For how long nothing of a rank has moved up to the last look, by the looks alone."""
    seen = [look for look in looks if look.main is not None]
    since = seen[-1].at_seconds if seen else 0.0
    for earlier, later in reversed(list(pairwise(seen))):
        if _moved_between(earlier, later):
            break
        since = earlier.at_seconds
    return seen[-1].at_seconds - since if seen else 0.0


def is_busy(looks: Sequence[ProcessLook]) -> bool:
    """Whether a rank's main thread takes processor time."""
    seen = [look for look in looks if look.main is not None]
    if len(seen) < 2:
        return False
    one, other = seen[0].main, seen[-1].main
    assert one is not None and other is not None  # noqa: S101, PT018 - for the type checker
    spent = other.cpu_seconds - one.cpu_seconds
    # One that wakes up twenty or a hundred times a second to look takes a hundredth of a processor.
    return other.state == "R" or spent > max(
        _STILL_CPU_SECONDS, _WAKES_SHARE * _seconds_between(seen[0], seen[-1])
    )


def took_processor(one: ThreadLook, other: ThreadLook) -> bool:
    """Whether a thread took processor time between two looks, or takes it now."""
    return other.state == "R" or other.cpu_seconds - one.cpu_seconds > _STILL_CPU_SECONDS


def others_work(first: ProcessLook, last: ProcessLook) -> bool:
    """Whether threads beside the main one take processor time."""
    return _cpu_of_others(last) - _cpu_of_others(first) > _BUSY_SHARE * _seconds_between(first, last)


def others_ran(first: ProcessLook, last: ProcessLook) -> bool:
    """Whether threads beside the main one took more processor time than a wake-up costs."""
    return _cpu_of_others(last) - _cpu_of_others(first) > _STILL_CPU_SECONDS


def works(first: ProcessLook, last: ProcessLook) -> bool:
    """Whether threads of a process take processor time, or it reads or writes."""
    spent = _cpu_of(last.threads) - _cpu_of(first.threads)
    return spent > _BUSY_SHARE * _seconds_between(first, last) or uses_files(first, last)


def uses_files(first: ProcessLook, last: ProcessLook) -> bool:
    """Whether a process reads or writes more than a line of a log."""
    for earlier, later in ((first.read_bytes, last.read_bytes), (first.written_bytes, last.written_bytes)):
        if (
            not isinstance(earlier, Missing)
            and not isinstance(later, Missing)
            and later - earlier > _BUSY_BYTES
        ):
            return True
    return False


def count_steps(looks: Sequence[ProcessLook]) -> tuple[str, ...]:
    """The counters of the user's loops that went on, in words: `step 41 -> 43`."""
    mains = [look.main for look in looks if look.main is not None and look.main.frames]
    if len(mains) < 2:
        return ()
    steps = _steps_between(mains[0].frames, mains[-1].frames)
    return tuple(f"{name} {a:g} -> {b:g}" for name, (a, b) in steps.items())[:3]


def _steps_between(earlier: Sequence[Frame], later: Sequence[Frame]) -> dict[str, tuple[float, float]]:
    return {
        name: (a, b)
        for name, (a, b) in changed_counters(earlier, later).items()
        if 0 < b - a < _MOST_STEPS and a == int(a) and b == int(b) and not _OF_TRIES.search(name)
    }


def wakes_in(looks: Sequence[ProcessLook]) -> float | None:
    """Seconds until the one sleep ends in which all looks found a main thread.

    It is None for several, or without a known end.
    """
    ends = [
        look.at_seconds + look.main.wakes_in_seconds
        for look in looks
        if look.main is not None and look.main.wakes_in_seconds is not None
    ]
    if not ends or len(ends) < len(looks) or max(ends) - min(ends) > _SAME_MOMENT_SECONDS:
        return None
    return max(0.0, ends[-1] - looks[-1].at_seconds)


def ran_backward(earlier: ProcessLook, later: ProcessLook) -> bool:
    """Whether torch's backward thread ran and sleeps again."""
    return _ran(earlier, later, _BACKWARD_THREAD)


def made_collectives(earlier: ProcessLook, later: ProcessLook) -> bool:
    """Whether a collective of gloo began or ended between two looks, in whichever thread of the process."""
    return _ran(earlier, later, _GLOO_THREAD)


def _ran(earlier: ProcessLook, later: ProcessLook, name: str) -> bool:
    """Whether a thread of that name ran and sleeps again; False across a stop, which wakes every thread."""
    if _was_stopped(earlier):
        return False
    before = {one.tid: one for one in earlier.threads if one.name.startswith(name)}
    return any(
        one.state == "S" and one.tid in before and one.switches > before[one.tid].switches
        for one in later.threads
    )


def backward_seconds_ago(looks: Sequence[ProcessLook]) -> float | None:
    """When a backward pass last ran, at the last look; None where no thread of torch's shows it.

    Looks after one at which the process was stopped show when it was woken, and do not count.
    """
    stopped = next((place for place, look in enumerate(looks) if _was_stopped(look)), len(looks) - 1)
    look = looks[stopped]
    known = [
        one.last_ran_seconds_ago
        for one in look.threads
        if one.name.startswith(_BACKWARD_THREAD)
        and one.state == "S"
        and not isinstance(one.last_ran_seconds_ago, Missing)
    ]
    return min(known) + looks[-1].at_seconds - look.at_seconds if known else None


def _was_stopped(look: ProcessLook) -> bool:
    """Whether the process was stopped after the kernel was asked: for its C functions, or a whole stack."""
    return look.stopped_seconds > 0 or (isinstance(look.stacks, str) and "stopped" in look.stacks)


def _moved_between(earlier: ProcessLook, later: ProcessLook) -> bool:
    one, other = earlier.main, later.main
    if one is None or other is None:
        return False
    ran = ran_backward(earlier, later) or _ran(earlier, later, _RPC_THREAD)
    ran = ran or (
        # A loop of steps that came back to one line: it woke up, and a collective of gloo was made.
        other.switches > one.switches and _ran(earlier, later, _GLOO_THREAD) and not only_polled(one, other)
    )
    return ran or _frames_ran(one, other) or uses_files(earlier, later)


def _frames_ran(one: ThreadLook, other: ThreadLook) -> bool:
    """Whether lines or variables changed; of a thread that only wakes up to look, whole numbers count."""
    if not one.frames or not other.frames or only_polled(one, other):
        return False
    if shape_of(one.frames) != shape_of(other.frames):
        return True
    if took_processor(one, other):
        return one.mark != other.mark or bool(changed_counters(one.frames, other.frames))
    return bool(_steps_between(one.frames, other.frames))


def _cpu_of_others(look: ProcessLook) -> float:
    return _cpu_of([one for one in look.threads if one.tid != look.pid])


def _cpu_of(threads: Sequence[ThreadLook]) -> float:
    return sum(one.cpu_seconds for one in threads if not one.name.startswith(_SPINNING_THREAD))


def _seconds_between(first: ProcessLook, last: ProcessLook) -> float:
    return max(0.1, last.at_seconds - first.at_seconds)
