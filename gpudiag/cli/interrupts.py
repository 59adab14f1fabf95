"""Ctrl-C while the program only loads or looks: there is nothing to clean up, and nothing to be said."""

from __future__ import annotations

import os
import signal

_INTERRUPTED = 130  # errors.ExitStatus.INTERRUPTED, which is not loaded by then


def end_quietly() -> None:
    """Let Ctrl-C end this process at once, unless it is ignored; children that it forked die with it.

    As an exception it would surface in the middle of an import, where no one handles it.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda *_: os._exit(_INTERRUPTED))


def raise_again() -> None:
    """Let Ctrl-C be an exception from here on: what runs now has something to clean up."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
