"""Ctrl-C and SIGTERM over the life of a command.

While it loads or looks it ends at once, with 130, or 143 and one line. From `raise_again` on they are
exceptions, which wait for the end of an import; one that Python drops (raised in a callback) is sent again,
and a second signal waits while it is. After the command's last word a signal adds no line.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

INTERRUPTED, TERMINATED = 130, 143  # as errors.ExitStatus has them, which is not loaded by then
_AGAIN_SECONDS = 0.02
_PATIENCE_SECONDS = 5.0  # an import from a disk that hangs may never end
_IMPORTING = "<frozen importlib"

_report_dropped = sys.unraisablehook
_since: dict[int, float] = {}  # when a signal came first that waits for an import
_is_over = False


class TerminatedError(BaseException):
    """SIGTERM arrived; not an Exception, so that only clean-up sees it on its way out."""


_SIGNALS: dict[type[BaseException], int] = {KeyboardInterrupt: signal.SIGINT, TerminatedError: signal.SIGTERM}


def end_quietly(*, is_over: bool = False) -> None:
    """Let both signals end this process at once, unless ignored; none is sent again.

    If the command `is_over`, it has reported its end, and no signal adds a line.
    """
    global _is_over
    _is_over = is_over
    if _since:
        signal.setitimer(signal.ITIMER_REAL, 0)
        _since.clear()
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _leave)
    if signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, _raise):
        signal.signal(signal.SIGTERM, _leave)


def raise_again(*, terminable: bool = True) -> None:
    """Let both signals be exceptions from here on; SIGTERM only where the command is `terminable` by one."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _raise)
    if terminable and signal.getsignal(signal.SIGTERM) is _leave:
        signal.signal(signal.SIGTERM, _raise)
    sys.unraisablehook = _send_dropped_again


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    if number == signal.SIGTERM and not _is_over:
        with contextlib.suppress(OSError):
            os.write(2, b"gpudiag: terminated\n")
    os._exit(TERMINATED if number == signal.SIGTERM else INTERRUPTED)


def _raise(number: int, frame: FrameType | None) -> None:
    since = _since.setdefault(number, time.monotonic())
    if _must_wait(frame) and time.monotonic() - since < _PATIENCE_SECONDS:
        _send_soon()
        return
    del _since[number]
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise TerminatedError


def _must_wait(frame: FrameType | None) -> bool:
    """Whether an exception would break an import, or be dropped while another one is reported."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(_IMPORTING) or frame.f_code is _send_dropped_again.__code__:
            return True
        frame = frame.f_back
    return False


def _send_dropped_again(dropped: UnraisableHookArgs) -> None:
    if dropped.exc_type not in _SIGNALS:
        _report_dropped(dropped)
        return
    _since.setdefault(_SIGNALS[dropped.exc_type], time.monotonic())
    _send_soon()


def _send_soon() -> None:
    signal.signal(signal.SIGALRM, _send_again)
    signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)


def _send_again(_number: int, _frame: FrameType | None) -> None:
    for number in tuple(_since):
        os.kill(os.getpid(), number)
