"""The event files (JSON lines) that ranks write while they run, and the log that an agent reads from them."""

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpudiag.model import codec
from gpudiag.ranks.rank.arrivals import Arrivals
from gpudiag.ranks.rank_run import EventKind, RankEvent


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

    def __init__(self, path: Path, rank: int) -> None:
        """Read the file at `path`, which need not exist yet: that of `rank`."""
        self._path = path
        self._rank = rank
        self._descriptor = -1
        self._partial = b""

    def read_new(self) -> list[RankEvent]:
        """The events appended since the last call (CLOCK_MONOTONIC); a torn line waits."""
        if self._descriptor < 0:
            try:
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return []
        data = self._partial
        while chunk := os.read(self._descriptor, 1 << 20):
            data += chunk
        *lines, self._partial = data.split(b"\n")
        return [self._parse(line) for line in lines]

    def _parse(self, line: bytes) -> RankEvent:
        read = json.loads(line)
        return RankEvent(self._rank, read["at"], read["data"], EventKind(read["kind"]))

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class EventLog:
    """Collects the events of ranks; another agent can take it over."""

    def __init__(self, started: float, on_event: Callable[[RankEvent], None] | None = None) -> None:
        """Count times from `started`; call `on_event` for each event that an entry emits, as it comes."""
        self.started = started
        self.collected: list[RankEvent] = []  # all of them, by CLOCK_MONOTONIC
        self.events: list[RankEvent] = []  # those that entries emitted, since the start
        self.results: dict[int, dict[str, Any]] = {}
        self.arrivals: dict[int, Arrivals] = {}
        self.faults_fired: dict[str, float] = {}  # when each first happened
        self._on_event = on_event

    def add(self, events: Iterable[RankEvent]) -> None:
        """Add events, by CLOCK_MONOTONIC."""
        for event in events:
            self.collected.append(event)
            self._sort(replace(event, at_seconds=event.at_seconds - self.started))

    def _sort(self, event: RankEvent) -> None:
        if event.kind is EventKind.RESULT:
            self.results[event.rank] = event.data
        elif event.kind is EventKind.ARRIVALS:
            self.arrivals[event.rank] = codec.decode(Arrivals, event.data)
        elif event.kind is EventKind.FAULT:
            self.faults_fired.setdefault(event.data["specification"], event.at_seconds)
        elif event.kind is EventKind.EMITTED:
            self.events.append(event)
            if self._on_event is not None:
                self._on_event(event)
