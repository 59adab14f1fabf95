"""The sampler's child, kept alive and replaced: whatever it does, NVML is soon asked again.

A child is replaced when it ends, when it falls silent, when a call does not return (a fresh process may
get an answer where an old one waits forever), when GPUs are lost (only nvmlInit finds them again) and
when driver or GPUs change. A successor must report before its predecessor is killed, so that healthy GPUs
are never unwatched. At three children that cannot be killed, no more are started until one has gone.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any

from gpudiag.sampler.process import ChildProcess
from gpudiag.sampler.tiers import FAST_SECONDS

_MODULE = "gpudiag.sampler.child"
_LOOK_SECONDS = 0.25
_SILENT_SECONDS = 2.5  # beyond its own interval; then the child itself is stuck
_WEDGED_SECONDS = 4.0  # a call that takes longer is given up
_BETWEEN_SUCCESSORS_SECONDS = 6.0
_LOST_SECONDS = 8.0  # between fresh starts while a GPU is lost, in the first minute
_LOST_LATER_SECONDS = 30.0
_LOST_SOON = 60.0
_SUCCESSOR_SECONDS = 3.0  # a successor that has not reported by then is killed
_MAX_STUCK = 3
_RESTART_SECONDS = (0.2, 0.5, 1.0, 2.0)  # after the 1st, 2nd ... end in a row
_FAILED_SECONDS = 4.0  # after a child that NVML refused: nothing changes that fast
_STEADY_SECONDS = 20.0  # a child that lived that long was healthy


@dataclass(frozen=True, slots=True)
class Trouble:
    """Trouble in the picture that a fresh child might cure."""

    longest_silence_seconds: float = 0.0  # of a GPU, or of nvmlInit
    lost_for_seconds: float | None = None


class Supervisor:
    """Runs one child of the sampler at a time, or two while one replaces the other."""

    def __init__(
        self,
        receive: Callable[[dict[str, Any]], None],
        trouble: Callable[[], Trouble],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Pass every message of the current child to `receive`; `trouble` returns what is wrong now."""
        self.restarts = 0  # children that ended or were given up; not those replaced to look for lost GPUs
        self.generation = 0  # children that were replaced, for whatever reason
        self.stuck = 0
        self.cannot_start: str | None = None  # why no child runs
        self._hand_on = receive
        self._trouble = trouble
        self._environment = environment
        self._current: ChildProcess | None = None
        self._successor: ChildProcess | None = None
        self._held: list[dict[str, Any]] = []  # what the successor has said
        self._abandoned: list[ChildProcess] = []
        self._pace: dict[str, Any] = {"interval": FAST_SECONDS, "paused": False}
        self._ends_in_a_row = 0
        self._failed = False  # the current child's last message was that NVML failed
        self._start_at = 0.0
        self._renewed_at = 0.0
        self._gives_up = False  # the successor was started because a call does not return

    @property
    def pid(self) -> int | None:
        """The process id of the current child."""
        return None if self._current is None else self._current.pid

    def set_pace(self, interval_seconds: float, *, paused: bool = False) -> None:
        """Set how often the child ticks; a paused one asks nothing."""
        pace = {"interval": interval_seconds, "paused": paused}
        if pace != self._pace:
            faster = paused is False and interval_seconds < self._pace["interval"]
            self._pace = pace
            for child in (self._current, self._successor):
                if child is not None:
                    child.send({**pace, "now": faster})

    async def run(self) -> None:
        """Keep a child running until cancelled, then kill it."""
        try:
            while True:
                self._look(monotonic())
                await asyncio.sleep(_LOOK_SECONDS)
        finally:
            self.close()

    def close(self) -> None:
        """Kill the children."""
        for child in (self._current, self._successor):
            if child is not None:
                self._abandon(child)
        self._current = self._successor = None
        self.count_stuck()

    def count_stuck(self) -> int:
        """The number of killed children that have not ended yet; the others are reaped."""
        self._abandoned = [child for child in self._abandoned if not child.is_reaped()]
        self.stuck = len(self._abandoned)
        return self.stuck

    def _look(self, now: float) -> None:
        self.count_stuck()
        if self._current is not None and self._is_silent(self._current, now):
            self._abandon(self._current)
        if self._current is not None and self._current.ended:
            self._note_end(self._current, now)
        if self._successor is not None:
            self._look_at_successor(self._successor, now)
        if self._current is None and self._successor is None and now >= self._start_at:
            self._current = self._start(self._receive)
        elif self._current is not None and self._successor is None and not self._pace["paused"]:
            self._renew(now)

    def _is_silent(self, child: ChildProcess, now: float) -> bool:
        pace = float(self._pace["interval"])
        return not child.ended and now - child.heard_at > pace + _SILENT_SECONDS

    def _note_end(self, child: ChildProcess, now: float) -> None:
        self._abandon(child)
        self._current = None
        self.restarts += 1
        self.generation += 1
        if child.heard_at == child.started_at and self._ends_in_a_row > 0:
            self.cannot_start = (
                f"the sampler's process ends before it says anything ({child.how_it_ended()}): "
                "`python -m gpudiag.sampler.child` shows why"
            )
        self._ends_in_a_row = 0 if now - child.started_at > _STEADY_SECONDS else self._ends_in_a_row + 1
        step = min(self._ends_in_a_row, len(_RESTART_SECONDS) - 1)
        self._start_at = now + (_FAILED_SECONDS if self._failed else _RESTART_SECONDS[step])

    def _renew(self, now: float) -> None:
        """Start a successor where a fresh process might cure what the picture shows."""
        trouble, since = self._trouble(), now - self._renewed_at
        wedged = trouble.longest_silence_seconds > _WEDGED_SECONDS and since > _BETWEEN_SUCCESSORS_SECONDS
        if not wedged and not _looks_for_lost(trouble, since):
            return
        self._renewed_at = now
        self._gives_up = wedged
        self._held = []
        self._successor = self._start(self._receive_from_successor)

    def _look_at_successor(self, child: ChildProcess, now: float) -> None:
        told = any(message["kind"] in ("tick", "failed") for message in self._held)
        late = now - child.started_at > _SUCCESSOR_SECONDS
        if not (told or late or child.ended):
            return
        self._successor = None
        if told or (late and self._current is None):
            if self._current is not None:
                self._abandon(self._current)
                self.restarts += self._gives_up
                self.generation += 1
            self._current = child
            for message in self._held:
                self._receive(child, message)
        else:
            self._abandon(child)
        self._held = []

    def _start(self, receive: Callable[[ChildProcess, dict[str, Any]], None]) -> ChildProcess | None:
        if self.stuck >= _MAX_STUCK:
            return None
        try:
            child = ChildProcess(_MODULE, (), receive, self._environment)
        except OSError as error:  # no more processes or descriptors: tried again at the next look
            self.cannot_start = f"the sampler's process cannot be started: {error.strerror or error}"
            return None
        child.send(self._pace)
        return child

    def _receive(self, _child: ChildProcess, message: dict[str, Any]) -> None:
        self._failed = message["kind"] == "failed"
        self.cannot_start = None
        self._hand_on(message)

    def _receive_from_successor(self, child: ChildProcess, message: dict[str, Any]) -> None:
        if child is self._current:
            self._receive(child, message)
        else:
            self._held.append(message)

    def _abandon(self, child: ChildProcess) -> None:
        child.abandon()
        self._abandoned.append(child)


def _looks_for_lost(trouble: Trouble, since: float) -> bool:
    """Whether it is time to look for a lost GPU again: often at first, then less often."""
    if trouble.lost_for_seconds is None:
        return False
    return since > (_LOST_SECONDS if trouble.lost_for_seconds < _LOST_SOON else _LOST_LATER_SECONDS)
