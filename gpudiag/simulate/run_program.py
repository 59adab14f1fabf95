"""Run a program on a simulated machine, as a shell would run it on a real one."""

import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from gpudiag.errors import UsageError
from gpudiag.linux.child import die_with_parent
from gpudiag.shortage import shortage_of
from gpudiag.simulate.motion import is_in_motion, move_readings
from gpudiag.simulate.scenario import Scenario
from gpudiag.simulate.session import Session, guarded, kill_programs, open_session
from gpudiag.simulate.story import Chapter, Story

# Signals that end a program, or that it may handle; they are forwarded to the program.
_FORWARDED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
_AWAITED = (*_FORWARDED, signal.SIGCHLD)
_FROM_THE_KERNEL = 0x80  # SI_KERNEL: the terminal's, which the program got as well
_ASKS_TO_END = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
# A program in a hung NVML call never ends by itself: SIGKILL follows a signal that requests the end.
_GRACE_SECONDS = 10.0
_INTERRUPTS_BEFORE_KILL = 3
_POLL_SECONDS = 0.5
_MOTION_SECONDS = 1.0  # a program that ends sooner sees the scenario as it is written
_STATE_FOLDER = "GPUDIAG_STATE_DIR"
_SIGNAL_STATUS_BASE = 128  # as shells report a program that a signal ended


def run_on_machine(
    machine: Scenario | Story,
    command: Sequence[str],
    *,
    announce: Callable[[Chapter], None] | None = None,
    forgets: bool = False,
) -> int:
    """The exit status of the command, run on the machine; 128 + N where signal N ended it.

    A machine with a story goes through it, and `announce` is called as each chapter begins. If it `forgets`,
    what gpudiag remembers of it (its state folder) is gone with it.

    Signals to this process go to the program. When it has ended, so have all that it started there,
    and the machine's files are gone; after a kill -9 of this process too.

    Raises:
        UsageError: the program does not exist, or the machine cannot be built.
    """
    start = machine.moment(0.0).scenario if isinstance(machine, Story) else machine
    with _restored_signals() as before, open_session(start) as session, guarded(session.folder):
        if forgets:
            session.environment = {**session.environment, _STATE_FOLDER: str(session.folder / "state")}
        motion = _Motion(session, machine, announce)
        return _run(session, _resolve(command, session.environment), before, motion)


def _resolve(command: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The command with its program's path; `gpudiag` is the one that runs now, installed or not."""
    name, *arguments = command
    if name == "gpudiag":
        return [sys.executable, "-m", "gpudiag", *arguments]
    path = shutil.which(name, path=environment["PATH"])
    if path is None and os.path.exists(name) and "/" in name:
        raise UsageError(f"{name} is no program that can be run", hint=f"see `ls -ld {name}`")
    if path is None:
        raise UsageError(
            f"there is no program {name!r} on the simulated machine",
            hint="write it as in a shell: gpudiag simulate h100x8 -- nvidia-smi -L",
        )
    return [path, *arguments]


def _run(session: Session, command: Sequence[str], unblocked: set[signal.Signals], motion: "_Motion") -> int:
    """The command's exit status. From here on signals are only polled, even while the machine is removed."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a caller may have had it ignored
    signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    try:
        child = subprocess.Popen(
            command,
            env=dict(session.environment),
            preexec_fn=partial(_prepare_child, os.getpid(), unblocked),
        )
    except OSError as error:
        if (shortage := shortage_of(error)) is not None:
            raise shortage from error
        raise UsageError(f"{command[0]} cannot be run: {error.strerror}") from error
    status = _wait(child, session, motion)
    return status if status >= 0 else _SIGNAL_STATUS_BASE - status


@contextmanager
def _restored_signals() -> Iterator[set[signal.Signals]]:
    """The signals blocked before, restored after: a second Ctrl-C must not leave the machine half removed."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        yield {signal.Signals(number) for number in before}
    finally:
        # Discard signals that came after the program's end.
        while signal.sigtimedwait(_AWAITED, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _prepare_child(parent_pid: int, blocked_before: set[signal.Signals]) -> None:
    """In the child, before the program starts: have it die with us, and restore the signal mask."""
    die_with_parent(parent_pid)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked_before)


class _Motion:
    """Goes on with the machine once a second while the program runs: story, busy GPUs' readings."""

    def __init__(
        self, session: Session, machine: Scenario | Story, announce: Callable[[Chapter], None] | None
    ) -> None:
        self._session, self._machine, self._announce = session, machine, announce
        self._started = time.monotonic()
        self._announced: Chapter | None = None
        self._next = math.inf
        if isinstance(machine, Story):
            self._next = self._started
        elif is_in_motion(machine):
            self._next = self._started + _MOTION_SECONDS

    def go_on(self) -> None:
        """Move the readings, if it is time."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _MOTION_SECONDS
        passed = now - self._started
        scenario = self._machine
        if isinstance(scenario, Story):
            moment = scenario.moment(passed)
            scenario = moment.scenario
            if self._announce is not None and self._announced is not moment.chapter:
                self._announced = moment.chapter
                self._announce(moment.chapter)
        self._session.update(move_readings(scenario, passed))


def _wait(child: subprocess.Popen[bytes], session: Session, motion: _Motion) -> int:
    """The child's wait status, with signals forwarded to it until then."""
    interrupts, deadline = 0, None
    while True:
        status = child.poll()
        if status is not None:
            return status
        motion.go_on()
        if deadline is not None and time.monotonic() > deadline:
            kill_programs(session.folder)
            deadline = None
        received = signal.sigtimedwait(_AWAITED, _POLL_SECONDS)
        if received is None or received.si_signo == signal.SIGCHLD:
            continue
        if received.si_code != _FROM_THE_KERNEL:
            child.send_signal(received.si_signo)
        interrupts += received.si_signo == signal.SIGINT
        if received.si_signo in _ASKS_TO_END:
            deadline = time.monotonic() + _GRACE_SECONDS
        elif interrupts == _INTERRUPTS_BEFORE_KILL:
            deadline = time.monotonic()
        elif interrupts == _INTERRUPTS_BEFORE_KILL - 1:
            print("gpudiag: the program is still running; interrupt again to kill it", file=sys.stderr)
