"""What the ranks of a run have written so far: results, events, injected faults that happened."""

from collections.abc import Callable, Iterable
from typing import Any

from gpudiag.model import codec
from gpudiag.ranks.arrivals import Arrivals
from gpudiag.ranks.events import EventKind
from gpudiag.ranks.run import RankEvent

RawEvent = tuple[int, dict[str, Any]]  # a rank, and one line of its event file


class Ledger:
    """Collects raw events; what it has taken can be handed to another agent, which starts from it."""

    def __init__(self, started: float, on_event: Callable[[RankEvent], None] | None = None) -> None:
        """Count times from `started`; call `on_event` for what entries emit, as it comes."""
        self.started = started
        self.raw: list[RawEvent] = []
        self.events: list[RankEvent] = []
        self.results: dict[int, dict[str, Any]] = {}
        self.arrivals: dict[int, Arrivals] = {}
        self.faults_fired: dict[str, float] = {}  # when each happened first
        self._on_event = on_event

    def take(self, events: Iterable[RawEvent]) -> None:
        """Add raw events."""
        for rank, event in events:
            self.raw.append((rank, event))
            self._take(rank, event["kind"], event["at"], event["data"])

    def _take(self, rank: int, kind: str, at: float, data: dict[str, Any]) -> None:
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
