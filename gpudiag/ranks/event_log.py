"""The event files (JSON lines) that ranks write while they run, and the log that an agent reads from them."""

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from gpudiag.compat import StrEnum
from gpudiag.model import codec
from gpudiag.ranks.rank.arrivals import Arrivals
from gpudiag.ranks.run import RankEvent


class EventKind(StrEnum):
    """One line of an event file."""

    EMITTED = "emitted"  # by the entry, through Progress.emit
    RESULT = "result"  # what the entry returned
    ARRIVALS = "arrivals"  # when the rank arrived at each timed collective
    RAISED = "raised"  # the exception that ended the entry
    FAULT = "fault"  # an injected fault that is about to happen


class EventWriter:
    """The rank's side: writes each event at once, as one line."""

    def __init__(self, path: Path) -> None:
        """Append to the file at `path`."""
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def write(self, kind: EventKind, data: Mapping[str, Any]) -> None:
        """Append one event, timestamped with this machine's CLOCK_MONOTONIC in seconds."""
        line = json.dumps({"kind": kind, "at": time.monotonic(), "data": data}, allow_nan=False)
        remaining = memoryview(line.encode() + b"\n")
        while remaining:
            remaining = remaining[os.write(self._descriptor, remaining) :]


class EventReader:
    """The agent's side: reads the events that came since the last call."""

    def __init__(self, path: Path) -> None:
        """Read the file at `path`, which need not exist yet."""
        self._path = path
        self._descriptor = -1
        self._partial = b""

    def read_new(self) -> list[dict[str, Any]]:
        """The events appended since the last call; a line still being written waits for the next."""
        if self._descriptor < 0:
            try:
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return []
        data = self._partial
        while chunk := os.read(self._descriptor, 1 << 20):
            data += chunk
        *lines, self._partial = data.split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


RawEvent = tuple[int, dict[str, Any]]  # a rank, and one line of its event file


class EventLog:
    """Collects raw events; another agent can be given what it has collected, and continue from there."""

    def __init__(self, started: float, on_event: Callable[[RankEvent], None] | None = None) -> None:
        """Count times from `started`; call `on_event` for each event that an entry emits, as it comes."""
        self.started = started
        self.raw: list[RawEvent] = []
        self.events: list[RankEvent] = []
        self.results: dict[int, dict[str, Any]] = {}
        self.arrivals: dict[int, Arrivals] = {}
        self.faults_fired: dict[str, float] = {}  # when each first happened
        self._on_event = on_event

    def add(self, events: Iterable[RawEvent]) -> None:
        """Add raw events."""
        for rank, event in events:
            self.raw.append((rank, event))
            self._sort(rank, event["kind"], event["at"], event["data"])

    def _sort(self, rank: int, kind: str, at: float, data: dict[str, Any]) -> None:
        if kind == EventKind.RESULT:
            self.results[rank] = data
        elif kind == EventKind.ARRIVALS:
            self.arrivals[rank] = codec.decode(Arrivals, data)
        elif kind == EventKind.FAULT:
            self.faults_fired.setdefault(data["specification"], at - self.started)
        elif kind == EventKind.EMITTED:
            event = RankEvent(rank, at - self.started, data)
            self.events.append(event)
            if self._on_event is not None:
                self._on_event(event)
