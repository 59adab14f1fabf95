"""Standard output and error of a command: nothing that came from outside steers the terminal through them.

A process may be called anything, a log may hold anything, and both are shown. Whatever a command prints passes here, so
that no place that prints has to think of it; the few sequences of gpudiag's own are written by `steer`.
"""

from __future__ import annotations

import io
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO


class PrintableStream(io.TextIOWrapper):
    """A text stream in which only gpudiag's own colours stay; line feeds and tabs are text."""

    colours = False

    def write(self, text: str) -> int:
        """Write the text, what would steer a terminal as its escape."""
        if text.replace("\n", "").isprintable():  # nearly always
            return super().write(text)
        from gpudiag.model.printable import escape_steering  # late: most commands never need it

        return super().write(escape_steering(text, colours=self.colours))

    def steer(self, sequence: str) -> None:
        """Write a sequence of gpudiag's own as it is."""
        super().write(sequence)


def steer(stream: TextIO, sequence: str) -> None:
    """Move the cursor, clear a line: a sequence that no text from outside may hold."""
    getattr(stream, "steer", stream.write)(sequence)


def guard_standard_streams() -> None:
    """Let standard output and error be printable streams from now on."""
    for name in ("stdout", "stderr"):
        guarded = _guarded(getattr(sys, name))
        setattr(sys, name, guarded)
        setattr(sys, f"__{name}__", guarded)  # the stream that was there can write no more


def _guarded(stream: TextIO) -> TextIO:
    if not isinstance(stream, io.TextIOWrapper):  # whoever put something else there knows why
        return stream
    colours = bool(os.environ.get("FORCE_COLOR")) or stream.isatty()
    encoding, errors, by_line = stream.encoding, stream.errors, stream.line_buffering
    guarded = PrintableStream(stream.detach(), encoding, errors, newline="\n", line_buffering=by_line)
    guarded.colours = colours
    return guarded
