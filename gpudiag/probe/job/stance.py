"""Where a thread stands, as a short text that stays the same while it only polls, and changes when anything around the poll runs."""

import hashlib
from collections.abc import Sequence

from gpudiag.probe.job.frames import Sources, mark_of
from gpudiag.probe.job.py_spy import RawFrame
from gpudiag.reference.waits import is_library


def read_stance(pid: int, frames: Sequence[RawFrame]) -> tuple[str, bool]:
    """The text for a stack, innermost frame first, and whether it is in a loop that only polls; empty without a line of the user's.

    The user's frames count with their lines and where the objects of their variables lie; of the function
    with a polling loop, and of what it calls, only that it is in that loop.
    """
    sources = Sources()
    seen: list[tuple[object, ...]] = []
    for frame in reversed(frames):
        if is_library(frame.file):
            continue
        polls = sources.poll_loop(pid, frame.file, frame.line)
        if polls:
            return _short([*seen, (frame.file, frame.function, polls)]), True
        seen.append((frame.file, frame.function, frame.line, mark_of((frame,))))
    return (_short(seen) if seen else ""), False


def _short(seen: Sequence[tuple[object, ...]]) -> str:
    return hashlib.blake2b(repr(seen).encode(errors="replace"), digest_size=8).hexdigest()
