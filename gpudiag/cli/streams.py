"""Standard output and error of a command."""

from __future__ import annotations

import codecs
import io
import os
import sys
from typing import TextIO

_ESCAPING = "gpudiag.escaping"
# Python's own: a letter that the terminal's encoding lacks is an exception.
_FAILING = (
    "strict",
    "surrogateescape",
)


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
    if errors in _FAILING:
        codecs.register_error(_ESCAPING, _escape)
        errors = _ESCAPING
    guarded = PrintableStream(stream.detach(), encoding, errors, newline="\n", line_buffering=by_line)
    guarded.colours = colours
    return guarded


def _escape(error: UnicodeError) -> tuple[str, int]:
    """What the encoding has no letter for, as JSON writes it: a document stays one."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2)), error.end
