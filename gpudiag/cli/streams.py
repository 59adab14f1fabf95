"""Standard output and error of a command, and Ctrl-C while it only loads or looks."""

from __future__ import annotations

import io
import os
import signal
import sys
from typing import TextIO

_INTERRUPTED = 130  # errors.ExitStatus.INTERRUPTED, which is not loaded by then


class PrintableStream(io.TextIOWrapper):
    """A text stream in which only gpudiag's own colours stay; line feeds and tabs are text."""

    colours = False

    def write(self, text: str) -> int:
        """Write the text, with what would steer a terminal as escapes."""
        if text.replace("\n", "").isprintable():  # nearly always
            return super().write(text)
        from gpudiag.model.untrusted_text import escape_steering  # imported late: most commands never need it

        return super().write(escape_steering(text, colours=self.colours))

    def steer(self, sequence: str) -> None:
        """Write a sequence of gpudiag's own as it is."""
        super().write(sequence)


def steer(stream: TextIO, sequence: str) -> None:
    """Write a terminal sequence (move the cursor, clear a line), which text from outside may not hold."""
    getattr(stream, "steer", stream.write)(sequence)


def guard_standard_streams() -> None:
    """Replace standard output and error by printable streams."""
    for name in ("stdout", "stderr"):
        guarded = _guarded(getattr(sys, name))
        setattr(sys, name, guarded)
        setattr(sys, f"__{name}__", guarded)  # the former stream can no longer write


def _guarded(stream: TextIO) -> TextIO:
    if not isinstance(stream, io.TextIOWrapper):  # a caller's own replacement stays
        return stream
    colours = bool(os.environ.get("FORCE_COLOR")) or stream.isatty()
    encoding, errors, by_line = stream.encoding, stream.errors, stream.line_buffering
    guarded = PrintableStream(stream.detach(), encoding, errors, newline="\n", line_buffering=by_line)
    guarded.colours = colours
    return guarded


def end_quietly() -> None:
    """Let Ctrl-C end this process at once, unless it is ignored; children that it forked die with it.

    As an exception it would surface in the middle of an import, where no one handles it.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda *_: os._exit(_INTERRUPTED))


def raise_again() -> None:
    """Let Ctrl-C be an exception from here on: from now on there is something to clean up."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
