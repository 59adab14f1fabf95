"""Ctrl-C and SIGTERM while ranks run: noticed at once, acted on only after the ranks are gone."""

import contextlib
import signal
import socket
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any, NoReturn

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class TerminatedError(SystemExit):
    """SIGTERM or SIGHUP ended the run; like SystemExit it ends the process, with 128 + the signal."""

    def __init__(self, number: int) -> None:
        """Exit with 128 + `number`, as shells report a signal."""
        super().__init__(128 + number)
        self.signal_number = number


class Interrupts:
    """The first signal that came, if any, and a descriptor that becomes readable when one comes."""

    def __init__(self, wakeup: socket.socket) -> None:
        """Watch through `wakeup`."""
        self.received: int | None = None
        self._wakeup = wakeup

    def fileno(self) -> int:
        """The descriptor to wait for."""
        return self._wakeup.fileno()

    def drain(self) -> None:
        """Empty the descriptor, so that the next wait waits."""
        with contextlib.suppress(BlockingIOError):
            self._wakeup.recv(4096)

    def note(self, number: int, _frame: FrameType | None) -> None:
        """Remember the first signal; later ones change nothing, the end is under way."""
        if self.received is None:
            self.received = number

    def raise_received(self) -> None:
        """Raise what the signal means to Python; nothing if none came.

        Raises:
            KeyboardInterrupt: after SIGINT.
            TerminatedError: after SIGTERM or SIGHUP.
        """
        if self.received is not None:
            _raise_for(self.received)


@contextlib.contextmanager
def noted_interrupts() -> Iterator[Interrupts]:
    """Note signals instead of acting on them, for as long as the context is open.

    Python lets only the main thread handle signals; in another thread nothing is noted and signals
    do what they did before.
    """
    wakeup, writer = socket.socketpair()
    wakeup.setblocking(False)
    writer.setblocking(False)
    interrupts = Interrupts(wakeup)
    in_main_thread = threading.current_thread() is threading.main_thread()
    try:
        with wakeup, writer, _handlers(interrupts, writer) if in_main_thread else contextlib.nullcontext():
            yield interrupts
    finally:
        interrupts.raise_received()


@contextlib.contextmanager
def _handlers(interrupts: Interrupts, writer: socket.socket) -> Iterator[None]:
    previous: dict[int, Any] = {number: signal.signal(number, interrupts.note) for number in _SIGNALS}
    previous_wakeup = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(previous_wakeup)
        for number, handler in previous.items():
            signal.signal(number, handler)


def _raise_for(number: int) -> NoReturn:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise TerminatedError(number)
