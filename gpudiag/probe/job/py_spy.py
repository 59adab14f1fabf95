"""Python stacks of another process by py-spy: the only place that runs it.

It is asked to read without stopping the process. A process that runs changes while it is read, so that a reading may
fail: it is tried again, and only then with a stop of some milliseconds, and never with a stop where a thread is stopped
or in uninterruptible sleep, for there py-spy would wait without end, or leave a stop signal behind.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpudiag.installed import install_command
from gpudiag.model.reading import Missing, MissingReason, Reading

STOPPED_FOR_A_MOMENT = "py-spy, the process stopped for it"
_READ = "py-spy"
_TRIES = 3
_ENDED = ("no such process", "failed to open process", "failed to get process executable name")
_PERMISSION = ("permission denied", "operation not permitted", "eperm")


@dataclass(frozen=True, slots=True)
class Variable:
    """A local variable: its name, py-spy's words for its value, and where the object lies."""

    name: str
    value: str
    address: int


@dataclass(frozen=True, slots=True)
class RawFrame:
    """A frame as py-spy tells it."""

    file: str
    function: str
    line: int
    variables: tuple[Variable, ...]


@dataclass(frozen=True, slots=True)
class RawThread:
    """A thread that runs Python: its name in Python, and its frames, innermost first."""

    name: str
    frames: tuple[RawFrame, ...]


# The threads of a process by their number, and how they were read.
Stacks = tuple[dict[int, RawThread], str]


def find_py_spy() -> str | None:
    """The program py-spy of this environment, else of PATH; None where there is none."""
    beside = os.path.join(os.path.dirname(sys.executable), "py-spy")
    return beside if os.access(beside, os.X_OK) else shutil.which("py-spy")


def read_stacks(pid: int, *, may_stop: bool, timeout_seconds: float) -> Reading[Stacks]:
    """The Python stacks of a process, or why there are none."""
    program = find_py_spy()
    if program is None:
        return Missing(MissingReason.SOURCE_ABSENT, f"py-spy is not installed: `{install_command('hang')}`")
    argv = [program, "dump", "--json", "--locals", "--pid", str(pid)]
    answer: Reading[dict[int, RawThread]] = Missing(MissingReason.ERROR)
    for _ in range(_TRIES):
        answer = _ask([*argv, "--nonblocking"], timeout_seconds)
        if not isinstance(answer, Missing):
            return answer, _READ
        if answer.reason is not MissingReason.ERROR:
            return answer
    if not may_stop and isinstance(answer, Missing):
        return answer
    stopped = _ask(argv, timeout_seconds)
    return stopped if isinstance(stopped, Missing) else (stopped, STOPPED_FOR_A_MOMENT)


def _ask(argv: Sequence[str], timeout_seconds: float) -> Reading[dict[int, RawThread]]:
    try:
        done = subprocess.run(argv, capture_output=True, timeout=timeout_seconds, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return Missing(MissingReason.TIMED_OUT, f"py-spy did not answer within {timeout_seconds:g} s")
    except OSError as error:
        return Missing(MissingReason.SOURCE_ABSENT, f"py-spy could not be started: {error.strerror}")
    if done.returncode:
        return _refusal(done.stderr.decode(errors="replace"))
    try:
        return {
            int(thread["os_thread_id"]): RawThread(
                str(thread["thread_name"] or ""), tuple(_frame(one) for one in thread["frames"])
            )
            for thread in json.loads(done.stdout)
            if thread["os_thread_id"] is not None
        }
    except (ValueError, KeyError, TypeError) as error:
        return Missing(MissingReason.ERROR, f"py-spy's answer could not be read: {error}")


def _refusal(text: str) -> Missing:
    words = " ".join(text.partition("Stack backtrace")[0].split())
    lowered = words.lower()
    if any(mark in lowered for mark in _PERMISSION):
        return Missing(MissingReason.NO_PERMISSION, words[:200])
    if "failed to find python version" in lowered:
        return Missing(
            MissingReason.NOT_SUPPORTED, "it runs no Python, or one that this py-spy does not know"
        )
    if any(mark in lowered for mark in _ENDED):
        return Missing(MissingReason.SOURCE_ABSENT, "the process has ended")
    return Missing(MissingReason.ERROR, f"py-spy: {words[:200]}")


def _frame(frame: dict[str, Any]) -> RawFrame:
    variables = tuple(
        Variable(one["name"], one["repr"] or "", int(one["addr"] or 0)) for one in frame["locals"] or ()
    )
    return RawFrame(str(frame["filename"]), str(frame["name"]), int(frame["line"]), variables)
