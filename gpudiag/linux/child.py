"""The processes that we start: tied to our life, signalled, killed, and reaped without waiting.

No signal ends a process in uninterruptible sleep. So a child that is given up is killed, added to
`KilledChildren`, and reaped later; once we are gone, by init. Children are made by `os.fork` where a
millisecond counts and there is one thread (probe/guard.py), else as a `Program`.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from time import monotonic, sleep
from typing import Any, Protocol

PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PR_SET_NAME = 15
_REAP_STEP_SECONDS = 0.0005


class Child:
    """A process that we started, from its start until it is reaped."""

    def __init__(self, pid: int, *, leads_group: bool = True) -> None:
        """The child with that pid; `leads_group`: of a process group of its own, which is killed with it."""
        self.pid = pid
        self._leads_group = leads_group
        self._status: int | None = None
        self._is_reaped = False

    def is_reaped(self) -> bool:
        """Whether it has ended, and its pid may belong to another process; reaps it if it has."""
        if not self._is_reaped:
            self._is_reaped, self._status = self._reap()
        return self._is_reaped

    def _reap(self) -> tuple[bool, int | None]:
        try:
            reaped, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:  # somebody else has reaped it
            return True, None
        return (True, os.waitstatus_to_exitcode(status)) if reaped else (False, None)

    def exit_status(self) -> int | None:
        """Its exit status, or minus its signal; None while it runs, and where another reaped it."""
        return self._status if self.is_reaped() else None

    def wait(self, seconds: float) -> int | None:
        """Its exit status, as `exit_status`, once it has ended; None where it does not within that time."""
        until = monotonic() + seconds
        while not self.is_reaped() and monotonic() < until:
            sleep(_REAP_STEP_SECONDS)
        return self._status

    def signal(self, number: int) -> None:
        """Send it a signal, and none to another process that has got its pid since."""
        if not self.is_reaped():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it, and the group that it leads: what it started may be left there after its own end."""
        if self._leads_group:
            kill_group(self.pid)
        if not self._is_reaped:
            kill(self.pid)  # one that was started just now leads no group yet


class Program(Child):
    """A child that runs a program in a session of its own, so that the terminal's signals are ours alone."""

    def __init__(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        *,
        stdin: Any = None,
        stdout: Any = None,
        stderr: Any = None,
        keep: Sequence[int] = (),
    ) -> None:
        """Start it with these standard files, as `subprocess` has them, by default none.

        `keep`: descriptors that it gets too.

        Raises:
            OSError: the program cannot be executed, or no process can be started.
        """
        import subprocess  # late: the quickest command starts no program

        null = subprocess.DEVNULL
        self._process = subprocess.Popen(
            argv,
            env=environment,
            stdin=null if stdin is None else stdin,
            stdout=null if stdout is None else stdout,
            stderr=null if stderr is None else stderr,
            pass_fds=keep,
            start_new_session=True,
        )
        super().__init__(self._process.pid)

    def _reap(self) -> tuple[bool, int | None]:
        status = self._process.poll()
        return status is not None, status

    @property
    def output(self) -> int:
        """The descriptor of the pipe from its standard output."""
        assert self._process.stdout is not None  # noqa: S101 - asked for by whoever reads it
        return self._process.stdout.fileno()

    @property
    def input(self) -> int:
        """The descriptor of the pipe to its standard input."""
        assert self._process.stdin is not None  # noqa: S101 - asked for by whoever writes to it
        return self._process.stdin.fileno()

    def close_pipes(self) -> None:
        """Close the pipes from and to it."""
        for pipe in (self._process.stdout, self._process.stdin):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()


class _Killed(Protocol):
    def is_reaped(self) -> bool:
        """Whether it has ended and was reaped."""


class KilledChildren:
    """Children that were killed and had not ended when they were left, as one that is stuck in a driver."""

    def __init__(self) -> None:
        """None yet."""
        self._left: list[_Killed] = []

    def add(self, child: _Killed) -> None:
        """Reap it, now or at a later count."""
        if not child.is_reaped():
            self._left.append(child)

    def count(self) -> int:
        """How many have still not ended; the others are reaped."""
        self._left = [child for child in self._left if not child.is_reaped()]
        return len(self._left)


def with_import_path(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for a Python that imports what this process does, however this one was started."""
    return {**environment, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent's thread ends (prctl(2)); end it now if that is gone.

    Start such a process from a thread that outlives it.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGKILL)


def name_process(name: str) -> None:
    """Show this process as `name` (at most 15 bytes) in ps and top."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def drop_standard_files(*descriptors: int) -> None:
    """Point these of 0, 1 and 2, by default all, at /dev/null: no reader of our output waits for us."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in descriptors or (0, 1, 2):
        os.dup2(null, descriptor)


def peek_exit(pid: int) -> int | None:
    """The exit status of a child, or minus its signal, without reaping it; None while it runs.

    Raises:
        ChildProcessError: it was reaped, or is no child of ours.
    """
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if ended is None:
        return None
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def kill(pid: int) -> None:
    """Send SIGKILL; do nothing if the process is already gone."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def kill_group(group: int) -> None:
    """Send SIGKILL to all of a process group; nothing if it is empty, or another user's by now."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
