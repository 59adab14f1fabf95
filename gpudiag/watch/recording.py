"""What was watched, in a file: a line for each document as it came, and the same again later.

    {"at": UNIX TIME, "host": NAME, "event": "live" or "findings", "data": DOCUMENT}

The documents are those of the service's stream (docs/api.md). A file whose name ends in .gz is packed.
"""

import asyncio
import bisect
import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import IO, Any, cast

from gpudiag.errors import GpudiagError, UsageError
from gpudiag.model.codec import dump_document, to_document
from gpudiag.model.documents import from_document
from gpudiag.model.service import Findings, Live
from gpudiag.units import format_size
from gpudiag.watch.frame import POINTS, Frame, History

_PACKED = ".gz"
_FRAME_SECONDS = 0.25  # between two pictures of a replay
_SPEEDS = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class Recorder:
    """Writes what comes to a file.

    One that cannot be written any more ends the recording, and not the view.
    """

    def __init__(self, path: Path) -> None:
        """Create the file, which must not be there yet.

        Raises:
            UsageError: it is there, or cannot be created.
        """
        self.path = path
        self._problem = ""
        self._bytes = 0
        try:
            # The file is open while the view is.
            opened = gzip.open(path, "xb") if path.name.endswith(_PACKED) else path.open("xb")  # noqa: SIM115
            self._file = cast("IO[bytes]", opened)
        except FileExistsError as error:
            raise UsageError(
                f"--record {path} is there already", hint="name another file, or remove it"
            ) from error
        except OSError as error:
            raise UsageError(
                f"--record {path} cannot be written: {error.strerror}", hint="name another file"
            ) from error

    @property
    def note(self) -> str:
        """How it goes: what was written, or why nothing is any more."""
        return self._problem or f"recording {format_size(self._bytes)}"

    def write(self, host: str, event: str, document: object, at: float) -> None:
        """Write one line."""
        if self._problem:
            return
        line = (
            dump_document({"at": round(at, 3), "host": host, "event": event, "data": to_document(document)})
            + "\n"
        )
        try:
            self._file.write(line.encode())
            self._file.flush()
        except OSError as error:
            self._problem = f"recording ended: {error.strerror}"
        else:
            self._bytes += len(line)

    def close(self) -> None:
        """Complete the file."""
        try:
            self._file.close()
        except OSError as error:
            self._problem = self._problem or f"recording ended: {error.strerror}"


def read_recording(path: Path) -> tuple[tuple[float, str], ...]:
    """The lines of a recording with their times, in order.

    A file that was cut off, as by a kill, is read as far as it goes.

    Raises:
        UsageError: it cannot be read, or is no recording.
    """
    found: list[tuple[float, str]] = []
    try:
        with (
            gzip.open(path, "rt", encoding="utf-8")
            if path.name.endswith(_PACKED)
            else path.open(encoding="utf-8") as file
        ):
            for line in file:
                if not line.endswith("\n"):
                    break
                found.append((_time_of(line), line))
    except EOFError:  # packed, and cut off
        pass
    except (OSError, ValueError, KeyError, TypeError) as error:
        words = getattr(error, "strerror", None) or "it is no recording of `gpudiag watch --record`"
        raise UsageError(f"--replay {path}: {words}", hint="name a file that --record has written") from error
    if not found:
        raise UsageError(f"--replay {path} is empty", hint="name a file that --record has written")
    return tuple(sorted(found, key=lambda one: one[0]))


def _time_of(line: str) -> float:
    """The time of a line, which begins with it: a document is parsed when it is shown."""
    prefix = '{"at":'
    if not line.startswith(prefix):
        raise ValueError(line[:20])
    return float(line[len(prefix) : line.index(",")])


class ReplayFeed:
    """A recording that is shown again at its own pace, or faster."""

    def __init__(self, lines: Sequence[tuple[float, str]], speed: float = 1.0) -> None:
        """Stand at the beginning."""
        self._lines = lines
        self._times = [at for at, _ in lines]
        self._speed = speed
        self._is_held = False
        self.clock = self._times[0]
        self._next = 0
        self._machines: dict[str, _Machine] = {}
        self._apply()

    @property
    def frames(self) -> tuple[Frame, ...]:
        """The machines as they were at that time."""
        return tuple(machine.frame(name) for name, machine in self._machines.items()) or (
            Frame("recording", is_here=False),
        )

    @property
    def note(self) -> str:
        """Where it is, and how fast it goes."""
        done = self.clock - self._times[0]
        whole = self._times[-1] - self._times[0]
        speed = "" if self._speed == 1 else f" x{self._speed:g}"
        return f"REPLAY {_clock(done)} of {_clock(whole)}{speed}"

    async def run(self, changed: Callable[[], None]) -> None:
        """Go on as time goes on."""
        before = monotonic()
        while True:
            await asyncio.sleep(_FRAME_SECONDS)
            now = monotonic()
            if not self._is_held and self.clock < self._times[-1]:
                self.clock = min(self._times[-1], self.clock + (now - before) * self._speed)
                self._apply()
                changed()
            before = now

    def seek(self, seconds: float) -> None:
        """Go that far on or back."""
        self.clock = min(self._times[-1], max(self._times[0], self.clock + seconds))
        place = bisect.bisect_right(self._times, self.clock)
        if place < self._next:  # back: from so far before it that the charts are whole
            self._machines = {}
            self._next = max(0, place - POINTS * 2)
        self._apply()

    def hold(self, *, is_held: bool) -> None:
        """Stand still, or go on."""
        self._is_held = is_held

    def change_speed(self, *, faster: bool) -> None:
        """Go at the next speed."""
        place = _SPEEDS.index(self._speed) + (1 if faster else -1)
        self._speed = _SPEEDS[min(len(_SPEEDS) - 1, max(0, place))]

    def _apply(self) -> None:
        while self._next < len(self._lines) and self._times[self._next] <= self.clock:
            line: dict[str, Any] = json.loads(self._lines[self._next][1])
            self._next += 1
            machine = self._machines.setdefault(str(line["host"]), _Machine())
            try:
                machine.add(from_document(line["data"]))
            except GpudiagError as error:
                machine.problem = f"a line of the recording cannot be read: {error.message}"


class _Machine:
    """One machine of a recording."""

    def __init__(self) -> None:
        self.problem: str | None = None
        self._live: Live | None = None
        self._findings: Findings | None = None
        self._history = History()

    def add(self, document: object) -> None:
        if isinstance(document, Live):
            self._live = document
            self._history.add(document)
            self.problem = None
        elif isinstance(document, Findings):
            self._findings = document

    def frame(self, name: str) -> Frame:
        live = self._live
        findings = () if live is None else live.findings
        if self._findings is not None and (live is None or live.findings_version == self._findings.version):
            findings = self._findings.findings
        at = None if live is None else live.at.timestamp()
        return Frame(name, live, findings, self._history.copied(), self.problem, at, is_here=False)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
