"""Work shared among processes: each is forked with its share of the items and returns its results."""

import os
import pickle
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NoReturn, TypeVar

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def work_in_shares(work: Callable[[_Item], _Made], items: Sequence[_Item], count: int) -> list[_Made]:
    """The result of `work` for each item, in order, by `count` processes of which this is the first.

    Signals reach this one alone and end the others; the share of one that ended is done here.
    """
    shares = [items[number::count] for number in range(count)]
    others: list[tuple[int, int] | None] = []
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # no process may be started and forgotten
    try:
        for share in shares[1:]:
            others.append(_start(work, share))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    made: list[list[_Made]] = []
    try:
        made.append([work(item) for item in shares[0]])
        for other, share in zip(others, shares[1:], strict=True):
            answer = None if other is None else _read(other[1])
            made.append([work(item) for item in share] if answer is None else answer)
    finally:
        _end(others)
    return [made[place % count][place // count] for place in range(len(items))]


def _start(work: Callable[[_Item], _Made], share: Sequence[_Item]) -> tuple[int, int] | None:
    """The pid of a process with a share, and the pipe of its answer; None where no process can be started."""
    reading, writing = os.pipe()
    try:
        pid = os.fork()
    except OSError:
        os.close(reading)
        os.close(writing)
        return None
    if pid == 0:
        os.close(reading)
        _work(work, share, writing)
    os.close(writing)
    return pid, reading


def _work(work: Callable[[_Item], _Made], share: Sequence[_Item], pipe: int) -> NoReturn:
    status = 1
    try:
        # A terminal sends it to all; the first process ends the others.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        with os.fdopen(pipe, "wb") as answer:
            pickle.dump([work(item) for item in share], answer)
        status = 0
    finally:
        os._exit(status)


def _read(pipe: int) -> list[Any] | None:
    """What a process made of its share; None where it ended before it was done."""
    with os.fdopen(pipe, "rb", closefd=False) as answer:
        whole = answer.read()
    try:
        return list(pickle.loads(whole))  # noqa: S301 - from a process that we forked
    except (EOFError, pickle.UnpicklingError):
        return None


def _end(others: list[tuple[int, int] | None]) -> None:
    """End the processes; those that have answered have ended by themselves, or are about to."""
    for pid, pipe in filter(None, others):
        os.close(pipe)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
