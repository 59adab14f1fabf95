"""Endless loops of Python: the `while` in which all looks found a thread, and whether it ends by itself."""

import re
from collections.abc import Sequence

from gpudiag.checks.job.movement import took_processor, uses_files
from gpudiag.model.job import Frame, ProcessLook
from gpudiag.reference.stacks import changed_counters, own_frames

_WHILE = re.compile(r"^while (.*) \(line \d+\)$")  # not of a generator: whoever takes from it has its end
# Calls that return another value as time passes.
_CLOCKS = re.compile(r"\b(time|monotonic|perf_counter|process_time|now|utcnow|thread_time)(_ns)?\(|\bclock\b")
_WAITS_FOR_END = frozenset(("join", "_wait_for_tstate_lock", "result"))


def find_loop(looks: Sequence[ProcessLook], tid: int) -> tuple[str, Frame] | None:
    """The loop in which all looks found a thread, as `while True (line 12)`, and its frame; None for none.

    The thread computes in the loop's function, or in what its condition calls. Not a loop that calls a
    function in its body, yields, reads or writes files, or compares a clock, a length or a number that moved:
    those have an end.
    """
    first, last = looks[0], looks[-1]
    stacks = [own_frames(_frames_of(look, tid)) for look in (first, last)]
    depth = 0
    for one, other in zip(reversed(stacks[0]), reversed(stacks[1]), strict=False):
        if (one.file, one.function) != (other.file, other.function):
            break
        depth += 1
    # The innermost function that all looks have in common, or the one that calls it.
    for place in (depth, depth - 1):
        loop = _loop_of(stacks, place)
        if loop:
            frame = stacks[1][-place]
            has_end = uses_files(first, last) or _ends(loop, stacks[0][-place], frame)
            return None if has_end else (loop, frame)
    return None


def find_joined_loop(looks: Sequence[ProcessLook]) -> tuple[str, Frame, str] | None:
    """The endless loop of a thread that the main thread joins: loop, frame, the thread's name; else None."""
    last = looks[-1]
    main = last.main
    if main is None or not any(
        frame.function.rpartition(".")[2] in _WAITS_FOR_END for frame in main.frames[:4]
    ):
        return None
    for thread in last.threads:
        earlier = next((one for one in looks[0].threads if one.tid == thread.tid), None)
        if thread.tid == last.pid or earlier is None or not took_processor(earlier, thread):
            continue
        found = find_loop(looks, thread.tid)
        if found is not None:
            return (*found, thread.name)
    return None


def _frames_of(look: ProcessLook, tid: int) -> tuple[Frame, ...]:
    return next((one.frames for one in look.threads if one.tid == tid), ())


def _loop_of(stacks: Sequence[Sequence[Frame]], depth: int) -> str:
    """The `while` in which the frame at that depth was in all looks, by itself or in its condition."""
    if depth < 1 or any(len(frames) > depth + 1 for frames in stacks):
        return ""
    around = [loop for loop in stacks[-1][-depth].inside if _WHILE.match(loop)][:1]
    for frames in stacks:
        frame, is_innermost = frames[-depth], len(frames) == depth
        around = [
            loop
            for loop in around
            if loop in frame.inside and (is_innermost or loop.endswith(f"(line {frame.line})"))
        ]
    return around[0] if around else ""


def _ends(loop: str, earlier: Frame, later: Frame) -> bool:
    """Whether a loop's condition compares a clock, or a number of its function that moved."""
    match = _WHILE.match(loop)
    text = match[1] if match else ""
    if not re.search(r"[<>]|!=", text):
        return False
    if _CLOCKS.search(text) or "len(" in text:  # what is filled or emptied meanwhile is not seen
        return True
    moved = changed_counters((earlier,), (later,))
    return any(re.search(rf"\b{re.escape(name)}\b", text) for name in moved)
