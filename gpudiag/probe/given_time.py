"""Time that a process was given: without that in which it waited for a processor.

On a busy host a limit by wall time takes a healthy driver for a hung one. The kernel counts the nanoseconds
on the run queue (/proc/PID/task/TID/schedstat); a thread in a call that hangs is not on it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol

from gpudiag.linux.proc import read_schedule

_MOST_FACTOR = 4.0  # own choice: no wait is longer than five times its limit ...
_MOST_SECONDS = 10.0  # ... or than ten seconds more
_MOST_SHARE = 0.9  # of a time that threads may have waited all together, each at the same moment
_of_ended_threads: list[float] = []  # of this process


class Running(Protocol):
    """A process that is waited for."""

    pid: int
    started_at: float  # time.monotonic


def waited_seconds(pid: int | str = "self") -> float:
    """Seconds for which that process's threads waited for a processor in all; 0 if unknown."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return 0.0
    ended = sum(_of_ended_threads) if pid == "self" else 0.0
    return ended + sum(_waited(f"{pid}/task/{thread}") for thread in threads)


def note_end_of_thread() -> None:
    """Keep what this thread has waited, which the kernel forgets when it ends."""
    _of_ended_threads.append(own_thread_waited_seconds())


def given_seconds(seconds: float) -> float:
    """How much of that time, the life of this process so far, it was given."""
    return seconds - min(waited_seconds(), _MOST_SHARE * seconds)


def own_thread_waited_seconds() -> float:
    """Seconds that this thread has waited for a processor since it was started; 0 if not known."""
    return _waited("thread-self")


def deadline_for(
    child: Running, seconds: float, since: Callable[[], float] | None = None
) -> Callable[[], float]:
    """When that child has been given `seconds` since `since`, by default its start (`time.monotonic`).

    Ask again until it has passed.
    """

    def moment() -> float:
        until = child.started_at + seconds if since is None else since()
        return until + min(waited_seconds(child.pid), _MOST_FACTOR * seconds, _MOST_SECONDS)

    return moment


def _waited(thread: str) -> float:
    try:
        return read_schedule(thread)[1]
    except (OSError, ValueError):  # it has ended, or the kernel does not count
        return 0.0
