"""The job's process: started as a shell would start it, its signals passed on, its end waited for.

It keeps gpudiag's standard files, process group and terminal, so that nothing stands between it and its user,
and outlives a gpudiag that is killed.

A signal to gpudiag alone is passed on; one to the process group has reached the job, and twice would be
another (torchrun). A witness, a process of the group that blocks all signals, shows which it was.
"""

import errno
import os
import resource
import select
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from gpudiag.errors import CommandNotFoundError, CommandRefusedError, LaunchError
from gpudiag.linux.child import Child, die_with_parent, drop_standard_files, name_process
from gpudiag.linux.proc import read_status
from gpudiag.shortage import shortage_of

PASSED_ON = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGTERM,
    signal.SIGTSTP,
    signal.SIGWINCH,
    signal.SIGXCPU,
    signal.SIGPWR,
)
# A reader or writer of the terminal in the background; the kernel stops the whole group.
_TERMINAL_STOPS = (signal.SIGTTIN, signal.SIGTTOU)
_WAITED = frozenset({*PASSED_ON, *_TERMINAL_STOPS, signal.SIGCONT, signal.SIGCHLD})
# A signal to a group is pending for all its processes within one system call; this is a thousand times as
# long.
_SPREAD_SECONDS = 0.005
_CLEAR_SECONDS = 1.0
_WAKE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class PassedSignal:
    """A signal that reached gpudiag while the job ran; `to_group`: the job had it already."""

    number: int
    at: float  # time.time
    to_group: bool


def block_signals() -> set[signal.Signals]:
    """Hold back the signals that are waited for; returns the mask of before, which the job must have."""
    return {signal.Signals(one) for one in signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED)}


def start_job(argv: Sequence[str], environment: Mapping[str, str], mask: set[signal.Signals]) -> int:
    """The pid of the job, which has our standard files and every descriptor that was handed down to us.

    Raises:
        CommandNotFoundError: there is no such command.
        CommandRefusedError: it cannot be executed.
        ShortageError: no process can be started.
    """
    # Python ignores these two for itself; all other signals are as the caller left them.
    defaults = (signal.SIGPIPE, signal.SIGXFSZ)
    if not argv[0]:
        raise CommandNotFoundError("the command's name is empty: is a variable of the shell not set?")
    try:
        return os.posix_spawnp(argv[0], list(argv), dict(environment), setsigmask=mask, setsigdef=defaults)
    except OSError as error:
        raise shortage_of(error) or _refusal(argv[0], error) from error


def _refusal(command: str, error: OSError) -> LaunchError:
    if error.errno == errno.ENOENT and "/" not in command:
        hint = "activate the job's environment, or give the command's path"
        return CommandNotFoundError(f"{command}: command not found", hint=hint)
    if error.errno == errno.ENOENT:
        if os.path.exists(command):
            why, hint = "the interpreter of its #! line does not exist", f"see `head -1 {command}`"
        else:
            why, hint = str(error.strerror), "name a program that is there"
        return CommandNotFoundError(f"cannot run {command}: {why}", hint=hint)
    by_interpreter = f"name its interpreter: gpudiag run -- bash {command}"
    if error.errno == errno.ENOEXEC:
        hint = f"it has no #! line; {by_interpreter}"
    elif os.path.isfile(command):
        hint = f"chmod +x {command}; or {by_interpreter}"
    else:
        hint = f"{command} is a folder: name the program in it" if os.path.isdir(command) else ""
    return CommandRefusedError(f"cannot run {command}: {error.strerror}", hint=hint)


class Witness:
    """A process of our process group that does nothing but show which signals the whole group got."""

    def __init__(self) -> None:
        """Start it; signals must be blocked."""
        ours, its = os.pipe(), os.pipe()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(ours[1])
            os.close(its[0])
            _witness(parent, ours[0], its[1])
        self._child = Child(self.pid, leads_group=False)
        os.close(ours[0])
        os.close(its[1])
        self._ask, self._answer = ours[1], its[0]

    def saw(self, number: int) -> bool:
        """Whether the signal that we just got was sent to the whole group; False without the witness."""
        time.sleep(_SPREAD_SECONDS)
        seen = bool(_pending(self.pid) & (1 << (number - 1)))
        if seen:
            self._clear(number)
        return seen

    def end(self) -> None:
        """End it and reap it: the first process of a container may reap nobody."""
        self._child.kill()
        self._child.wait(_CLEAR_SECONDS)

    def _clear(self, number: int) -> None:
        """Have it forget that signal; others may have come since, and are still to be asked for."""
        try:
            os.write(self._ask, bytes([number]))
            if select.select([self._answer], [], [], _CLEAR_SECONDS)[0]:
                os.read(self._answer, 1)
        except OSError:  # it was killed: every signal counts as ours alone from now on
            return


def _witness(parent: int, ask: int, answer: int) -> NoReturn:
    """Block signals until the parent is gone; forget the one that it names."""
    try:
        die_with_parent(parent)
        name_process("gpudiag-witness")
        drop_standard_files()  # whoever reads the job's output waits for its last writer
        while asked := os.read(ask, 1):
            signal.sigtimedwait(asked, 0)
            os.write(answer, asked)
    finally:
        os._exit(0)


def _pending(pid: int) -> int:
    """The mask of signals that wait for a process; 0 where it is gone."""
    with suppress(OSError):
        return int(read_status(pid).get("ShdPnd", "0"), 16)
    return 0


class Supervision:
    """The wait for the job's end: its signals passed on, and every other child of ours reaped."""

    def __init__(
        self,
        job_pid: int,
        witness: Witness,
        before_passing: Callable[[int], None],
        on_signal: Callable[[PassedSignal], None],
    ) -> None:
        """`before_passing` runs before a signal that may end the job is passed on to it."""
        self._job = job_pid
        self._witness = witness
        self._before_passing = before_passing
        self._on_signal = on_signal
        self.ended: dict[int, int] = {}  # wait status of each child of ours that has ended

    def wait(self) -> int:
        """The job's wait status, once it has ended."""
        while self._job not in self.ended:
            self._take(signal.sigtimedwait(_WAITED, _WAKE_SECONDS))
            self._reap()
        self._note_last_signals()
        return self.ended[self._job]

    def _note_last_signals(self) -> None:
        """Report signals that the whole group got, and that were not taken before the job ended of them."""
        while (info := signal.sigtimedwait(_WAITED, 0)) is not None:
            if info.si_signo in PASSED_ON and self._witness.saw(info.si_signo):
                self._on_signal(PassedSignal(info.si_signo, time.time(), to_group=True))

    def wait_for(self, pid: int, seconds: float) -> bool:
        """Whether that other child of ours ends within `seconds`; a second Ctrl-C ends the wait."""
        until = time.monotonic() + seconds
        interrupts = 0
        self._reap()
        while pid not in self.ended and (left := until - time.monotonic()) > 0 and interrupts < 2:
            info = signal.sigtimedwait(_WAITED, min(left, _WAKE_SECONDS))
            interrupts += info is not None and info.si_signo in (signal.SIGINT, signal.SIGTERM)
            self._reap()
        return pid in self.ended

    def _take(self, info: signal.struct_siginfo | None) -> None:
        if info is None or info.si_signo in (signal.SIGCHLD, *_TERMINAL_STOPS):
            return
        number = info.si_signo
        if number == signal.SIGCONT:  # whoever lets us go on wants the job to go on
            _send(self._job, number)
            return
        to_group = self._witness.saw(number)
        self._on_signal(PassedSignal(number, time.time(), to_group))
        if not to_group:
            if number != signal.SIGWINCH:
                self._before_passing(number)
            _send(self._job, number)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if not os.WIFSTOPPED(status):
                self.ended[pid] = status
            elif pid == self._job and os.WSTOPSIG(status) in (signal.SIGTSTP, *_TERMINAL_STOPS):
                # The terminal's user stopped it, and the shell waits for us to stop.
                _stop_by(os.WSTOPSIG(status))


def _stop_by(number: int) -> None:
    """Stop this process by that signal, until somebody lets it go on."""
    os.kill(os.getpid(), number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    signal.pthread_sigmask(signal.SIG_BLOCK, {number})


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:  # it ended at this very moment
        return
    except PermissionError:  # it became another user's
        return


def exit_as(status: int) -> int:
    """The exit status of a job with that wait status, as a shell shows it; a signal's death is died, too.

    So the caller sees what it would have seen of the job itself.
    """
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return code
    number = -code
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the core is the job's to leave
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    return 128 + number  # we are the first process of a container, which no signal of its own ends


def signal_name(number: int) -> str:
    """`SIGTERM`; `signal 40` where it has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
