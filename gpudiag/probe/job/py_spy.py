"""Python stacks of another process by py-spy: the only place that runs it.

It is asked to read without stopping the process. A process that runs changes while it is read, so that a
reading may fail: it is tried again, and only then with a stop of some milliseconds, and never with a stop
where a thread is stopped or in uninterruptible sleep, for there py-spy would wait without end, or leave a
stop signal behind.
"""

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Event, Thread
from time import monotonic, sleep
from typing import Any

from gpudiag.compat import Self
from gpudiag.installed import install_command
from gpudiag.linux.proc import read_stat
from gpudiag.model.reading import Missing, MissingReason, Reading

STOPPED_FOR_A_MOMENT = "py-spy, the process stopped for it"
_READ = "py-spy"
_TRIES = 4
_MOST_FUNCTIONS = 24
_PYTHON_LOOP = "_PyEval_EvalFrameDefault"
_NATIVE_TRIES = 3
_LEFT_STOPPED_SECONDS = 0.5
_LOOK_SECONDS = 0.002  # between two looks at a process that may be stopped
# A stack that shows nothing else was cut off: at the kernel's clock, which a driver that waits reads all the
# time.
_OF_THE_SYSTEM = re.compile(r"\((\[vdso\]|libc\.so\.6|ld-linux[^)]*)\)$")
# Functions in which a main thread's stack begins: a script, `python -m`, and what runs once the script has
# ended.
_OUTERMOST = frozenset(("<module>", "_run_module_as_main", "_shutdown", "_run_exitfuncs", "_exit_function"))
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
    """A frame as py-spy prints it."""

    file: str
    function: str
    line: int
    variables: tuple[Variable, ...]


@dataclass(frozen=True, slots=True)
class RawThread:
    """A thread that runs Python: its name in Python, and its frames, innermost first."""

    name: str
    frames: tuple[RawFrame, ...]
    holds_gil: bool | None = None


# The threads of a process by their number, and how they were read.
Stacks = tuple[dict[int, RawThread], str]
_GONE = Missing(MissingReason.ERROR, "the process has ended")


def find_py_spy() -> str | None:
    """The program py-spy of this environment, else of PATH; None where there is none."""
    beside = os.path.join(os.path.dirname(sys.executable), "py-spy")
    return beside if os.access(beside, os.X_OK) else shutil.which("py-spy")


def read_stacks(pid: int, *, may_stop: bool, timeout_seconds: float) -> Reading[Stacks]:
    """The Python stacks of a process, or why there are none.

    A reading in which the main thread's stack is empty or lacks its outermost frames is tried again: a thread
    that computes changes its frames while they are read.
    """
    program = find_py_spy()
    if program is None:
        return Missing(MissingReason.SOURCE_ABSENT, f"py-spy is not installed: `{install_command('hang')}`")
    argv = [program, "dump", "--json", "--locals", "--pid", str(pid)]
    best: dict[int, RawThread] | None = None
    failure = Missing(MissingReason.ERROR)
    for _ in range(_TRIES):
        answer = _ask([*argv, "--nonblocking"], timeout_seconds)
        if isinstance(answer, Missing):
            failure = answer
            if answer.reason is not MissingReason.ERROR or answer is _GONE:
                break
        elif _is_whole(answer, pid):
            return answer, _READ
        elif best is None or len(_main_frames(answer, pid)) > len(_main_frames(best, pid)):
            best = answer
    if best is not None and _main_frames(best, pid):
        return best, _READ
    if may_stop and failure.reason is MissingReason.ERROR and failure is not _GONE:
        stopped = _ask(argv, timeout_seconds)
        if not isinstance(stopped, Missing):
            return stopped, STOPPED_FOR_A_MOMENT
        failure = stopped
    return failure if best is None else (best, _READ)


def read_native(pid: int, *, timeout_seconds: float) -> Reading[tuple[str, ...]]:
    """The C functions of the main thread above its last Python frame, innermost first, each with its library.

    py-spy stops the process while it reads them: 0.1 s and more, the longer the larger its libraries are.
    """
    program = find_py_spy()
    if program is None:
        return Missing(MissingReason.SOURCE_ABSENT, f"py-spy is not installed: `{install_command('hang')}`")
    argv = [program, "dump", "--native", "--json", "--pid", str(pid)]
    found: Reading[tuple[str, ...]] = Missing(MissingReason.ERROR)
    for _ in range(_NATIVE_TRIES):
        try:
            done = subprocess.run(
                argv, capture_output=True, timeout=timeout_seconds, stdin=subprocess.DEVNULL
            )
        except subprocess.TimeoutExpired:
            _continue_stopped(pid)
            return Missing(MissingReason.TIMED_OUT, f"py-spy did not answer within {timeout_seconds:g} s")
        except OSError as error:
            return Missing(MissingReason.SOURCE_ABSENT, f"py-spy could not be started: {error.strerror}")
        if done.returncode:
            return _refusal(done.stderr.decode(errors="replace"))
        found = parse_native(done.stdout.decode(errors="replace"), pid)
        if isinstance(found, Missing) or not all(_OF_THE_SYSTEM.search(one) for one in found):
            break
    return found


class StopWatch:
    """Measures how long a tracer holds a process within a `with`: `seconds`, to some milliseconds."""

    def __init__(self, pid: int) -> None:
        self.seconds = 0.0
        self._pid = pid
        self._over = Event()
        self._thread = Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        since: float | None = None
        while not self._over.wait(_LOOK_SECONDS):
            try:
                state = read_stat(self._pid).state
            except (OSError, ValueError, IndexError):
                return
            now = monotonic()
            if state in "tT":
                since = now if since is None else since
                self.seconds = now - since


def _continue_stopped(pid: int) -> None:
    """Continue a process that a killed py-spy left stopped: the stop that it had asked for came afterwards.

    Only called for a process of which no thread was stopped before.
    """
    until = monotonic() + _LEFT_STOPPED_SECONDS
    while monotonic() < until:
        try:
            if read_stat(pid).state == "T":
                os.kill(pid, signal.SIGCONT)
        except (OSError, ValueError):  # it has ended
            return
        sleep(0.05)


def parse_native(text: str, tid: int) -> Reading[tuple[str, ...]]:
    """The C functions of a thread in py-spy's JSON, innermost first, down to its last Python frame.

    Those without a name are left out. A thread that runs Python's own loop has no other: then that is its
    only function.
    """
    try:
        threads = {one["os_thread_id"]: one["frames"] for one in json.loads(text)}
        inner = list(itertools.takewhile(_is_native, threads[tid]))
        named = [
            f"{frame['name']} ({os.path.basename(frame['module'])})"
            for frame in inner
            if not frame["name"].startswith("0x")
        ]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        return Missing(MissingReason.ERROR, f"py-spy's answer could not be read: {error}")
    if not inner:
        return (_PYTHON_LOOP,)
    return tuple(named[:_MOST_FUNCTIONS]) or (f"a function without a name ({inner[0]['short_filename']})",)


def _is_native(frame: Mapping[str, Any]) -> bool:
    """Whether a frame is of C; one whose library could not be found has a number for its name."""
    return frame["module"] is not None or str(frame["name"]).startswith("0x")


def _is_whole(threads: dict[int, RawThread], pid: int) -> bool:
    """Whether the main thread's stack reaches down to where Python began, or to its end."""
    frames = _main_frames(threads, pid)
    return bool(frames) and frames[-1].function in _OUTERMOST


def _main_frames(threads: dict[int, RawThread], pid: int) -> tuple[RawFrame, ...]:
    main = threads.get(pid)
    return main.frames if main is not None else ()


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
                str(thread["thread_name"] or ""),
                tuple(_frame(one) for one in thread["frames"]),
                thread.get("owns_gil"),
            )
            for thread in json.loads(done.stdout)
            if thread["os_thread_id"] is not None
        }
    except (ValueError, KeyError, TypeError, RecursionError) as error:
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
        return _GONE
    return Missing(MissingReason.ERROR, f"py-spy: {words[:200]}")


def _frame(frame: dict[str, Any]) -> RawFrame:
    variables = tuple(
        Variable(one["name"], one["repr"] or "", int(one["addr"] or 0)) for one in frame["locals"] or ()
    )
    return RawFrame(str(frame["filename"]), str(frame["name"]), int(frame["line"]), variables)
