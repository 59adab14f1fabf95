"""A run's progress while it goes on: event lines in a file, and one line on a terminal."""

import contextlib
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO, TypeVar

import click

from gpudiag.cli.result_options import STANDARD_OUTPUT
from gpudiag.cli.streams import steer
from gpudiag.model.codec import dumps
from gpudiag.model.run import EventKind, RunEvent
from gpudiag.units import format_size

# Stages of gpudiag itself, not of ranks (gpudiag/runs/events.py).
_OWN_STAGES = {"look": "looking at the machine", "active": "starting the tests", "judge": "judging"}
_CLEAR_LINE = "\r\x1b[K"
_Command = TypeVar("_Command", bound=Callable[..., Any])


class EventFile:
    """`--events FILE`: one JSON document per line, written at once; `-` prints them.

    A file that fails costs the events and one line on standard error, never the run.
    """

    def __init__(self, path: Path | None) -> None:
        """Write to `path`; None writes nothing."""
        self._path = path
        self._file: TextIO | None = None

    @staticmethod
    def require(context: click.Context, parameter: click.Parameter, path: Path | None) -> Path | None:
        """The path, when it can be written to. Raises UsageError: it cannot."""
        if path is not None and path != STANDARD_OUTPUT and not context.resilient_parsing:
            from gpudiag.runs.output import require_writable

            require_writable(path)
        return path

    def write(self, event: RunEvent) -> None:
        """Append one event; nothing after the first that could not be written."""
        if self._path is None:
            return
        try:
            if self._path == STANDARD_OUTPUT:
                print(dumps(event), flush=True)
                return
            if self._file is None:
                self._file = self._path.open("w", buffering=1, encoding="utf-8")
            self._file.write(dumps(event) + "\n")
        except OSError as error:
            self._give_up(error)

    def __enter__(self) -> "EventFile":
        """The file, still unopened."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file, if an event opened it."""
        if self._file is not None:
            try:
                self._file.close()
            except OSError as problem:  # some file systems report a full disk only now
                self._give_up(problem)

    def _give_up(self, error: OSError) -> None:
        words = f"cannot write to {self._path}: {error.strerror or error}; the events after that are lost"
        if sys.stderr.isatty():
            steer(sys.stderr, _CLEAR_LINE)
        print(f"gpudiag: {words}", file=sys.stderr, flush=True)
        self._path = None
        if self._file is not None:
            with contextlib.suppress(OSError):  # what was not written is still in its buffer
                self._file.close()
            self._file = None


class ProgressLine:
    """One line on a terminal that shows how far a run is; nothing without a terminal."""

    def __init__(self, stream: TextIO, parts: Sequence[str] = ()) -> None:
        """Write to `stream` if it is a terminal; `parts` names the run's parts, in order."""
        self._stream = stream if stream.isatty() else None
        self._parts = parts

    def show(self, event: RunEvent) -> None:
        """Show the progress that the event reports, if any."""
        if self._stream is None:
            return
        if event.kind is EventKind.STAGE:
            part = f"{self._parts[event.done]}, " if event.done < len(self._parts) else ""
            self._write(f"{part}{_OWN_STAGES.get(str(event.stage)) or f'ranks: {event.stage}'}")
        elif event.result is not None:
            size = format_size(event.result.size_bytes)
            self._write(f"{event.done} of {event.planned}: {event.result.op} {event.result.dtype} {size}")
        elif event.strategy is not None:
            name, outcome = event.strategy.strategy, event.strategy.outcome.value
            self._write(f"{event.done} of {event.planned}: {name} {outcome}")

    def announce(self, sentence: str) -> None:
        """Print what comes next, in a line that stays, on a terminal only: scripts need none."""
        if self._stream is not None:
            self.warn(sentence)

    def warn(self, sentence: str) -> None:
        """Print the sentence on standard error, in place of the progress."""
        self._write("")
        with suppress(OSError):
            print(f"gpudiag: {sentence}", file=sys.stderr, flush=True)

    def __enter__(self) -> "ProgressLine":
        """The line, still empty."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Clear the line: what follows is the report, or the reason why there is none."""
        self._write("")

    def _write(self, text: str) -> None:
        if self._stream is None:
            return
        try:
            steer(self._stream, _CLEAR_LINE)
            self._stream.write(text)
            self._stream.flush()
        except OSError:  # the terminal was closed: the run goes on without it
            self._stream = None


def events_option(command: _Command) -> _Command:
    """`--events FILE`: events as they happen; checked before any work starts."""
    return click.option(
        "--events",
        type=click.Path(readable=False, path_type=Path),
        callback=EventFile.require,
        metavar="FILE",
        help="Write each result and finding to FILE as it comes, as JSON lines; - prints them.",
    )(command)


def join_listeners(*listeners: Callable[[RunEvent], None]) -> Callable[[RunEvent], None]:
    """One listener that passes each event to all of them in turn."""

    def pass_on(event: RunEvent) -> None:
        for listener in listeners:
            listener(event)

    return pass_on
