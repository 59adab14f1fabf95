"""Ctrl-C and SIGTERM while ranks run: noticed at once, acted on only after the ranks are gone."""

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# By default these end a process too, without any cleanup.
_OTHER_SIGNALS = (
    signal.SIGQUIT,
    signal.SIGABRT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGVTALRM,
    signal.SIGPROF,
    signal.SIGXCPU,
    signal.SIGPWR,
    signal.SIGIO,
)


# A SIGTERM that came before the run started.
_early: list[int] = []


def note_termination() -> None:
    """Note SIGTERM from now on, for the run about to be prepared; torchrun sends it when a rank has died."""
    signal.signal(signal.SIGTERM, lambda number, _: _early.append(number))


class TerminatedError(SystemExit):
    """SIGTERM, SIGHUP or the like ended the run; the process exits with 128 + the signal's number."""

    def __init__(self, number: int) -> None:
        """Exit with 128 + `number`, as shells report a signal."""
        super().__init__(128 + number)
        self.signal_number = number


class Interrupts:
    """Whether the run is to be given up, and a descriptor that becomes readable when a signal comes."""

    def __init__(self, wakeup: socket.socket, launcher_pid: int | None, grace_seconds: float) -> None:
        """Watch through `wakeup`; see `noted_interrupts` for the rest."""
        self._wakeup = wakeup
        self._launcher_pid = launcher_pid
        self._grace_seconds = grace_seconds
        self._received: int | None = None
        self._received_at = 0.0
        self._acted_on = False

    def fileno(self) -> int:
        """The descriptor to wait for."""
        return self._wakeup.fileno()

    @property
    def received(self) -> bool:
        """Whether a signal has come, acted on or not."""
        return self._received is not None

    def note(self, number: int, _frame: FrameType | None = None) -> None:
        """Remember the first signal; ignore later ones, as the run is already ending."""
        if self._received is None:
            self._received, self._received_at = number, time.monotonic()

    def is_due(self, patience_seconds: float | None = None) -> bool:
        """Whether the run must be given up now; then leaving the context raises."""
        with contextlib.suppress(BlockingIOError):
            self._wakeup.recv(4096)
        if self._launcher_pid is not None and os.getppid() != self._launcher_pid:
            self.note(signal.SIGTERM)  # the launcher was killed before it could send one
        if self._received is None:
            return False
        grace = self._grace_seconds if patience_seconds is None else patience_seconds
        patience = grace if self._received == signal.SIGTERM else 0.0
        self._acted_on = self._acted_on or time.monotonic() - self._received_at >= patience
        return self._acted_on

    def raise_due(self) -> None:
        """Raise the signal's exception; nothing if none came, or the run ended within a SIGTERM's grace.

        Raises:
            KeyboardInterrupt: after SIGINT.
            TerminatedError: after SIGTERM or SIGHUP.
        """
        if self._received == signal.SIGINT:
            raise KeyboardInterrupt
        if self._received is not None and (self._acted_on or not self._grace_seconds):
            raise TerminatedError(self._received)


@contextlib.contextmanager
def noted_interrupts(*, launcher_pid: int | None = None, grace_seconds: float = 0.0) -> Iterator[Interrupts]:
    """Note signals instead of acting on them while the context is open; then raise them.

    A launcher that loses a process sends SIGTERM to the others, which still have to report it: it becomes due
    after `grace_seconds`, and is not raised if the run has ended by then. The death of `launcher_pid`, our
    parent, counts as SIGTERM. Only the main thread notes signals, as Python has it.
    """
    wakeup, writer = socket.socketpair()
    wakeup.setblocking(False)
    writer.setblocking(False)
    interrupts = Interrupts(wakeup, launcher_pid, grace_seconds)
    in_main_thread = threading.current_thread() is threading.main_thread()
    try:
        with wakeup, writer, _handlers(interrupts, writer) if in_main_thread else contextlib.nullcontext():
            while _early:
                interrupts.note(_early.pop())
            yield interrupts
    finally:
        interrupts.raise_due()


@contextlib.contextmanager
def _handlers(interrupts: Interrupts, writer: socket.socket) -> Iterator[None]:
    # Signals that are ignored (nohup) stay ignored; of the others, those with a handler keep it.
    numbers = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    numbers += [number for number in _OTHER_SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
    previous: dict[int, Any] = {number: signal.signal(number, interrupts.note) for number in numbers}
    previous_wakeup = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(previous_wakeup)
        for number, handler in previous.items():
            signal.signal(number, handler)
