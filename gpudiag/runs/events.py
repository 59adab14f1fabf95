"""The events of a run while it goes on: stages, where its ranks are, findings, strategies, the outcome."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from time import monotonic
from typing import Any

from gpudiag.model.report import Report
from gpudiag.model.run import EventKind, RankStanding, RunEvent
from gpudiag.model.training import StrategyResult, TrainingReport
from gpudiag.ranks.diagnosis.standing import list_standings
from gpudiag.ranks.diagnosis.view import RankView
from gpudiag.ranks.rank_run import RankEvent
from gpudiag.ranks.stages import IMPORT, MEASURE, VERIFY

LOOK = "look"
JUDGE = "judge"

# Ranks emit `start` when they are about to train, and `proof` when only the timed steps are left.
_STAGE_AFTER = {"start": VERIFY, "proof": MEASURE}
_ORDER = (IMPORT, VERIFY, MEASURE)

_STANDINGS_SECONDS = 1.0  # the shortest time between two events of where ranks are
_RANKS_PER_SECOND = 250  # of more ranks the events are rarer: each names all of them, in 180 bytes a rank
_UNCHANGED_SECONDS = 5.0  # between two of ranks that stand still: for how long is in them


class StandingEvents:
    """Passes on where ranks are: once a second while they move, and more rarely while they stand still."""

    def __init__(self, emit: Callable[[tuple[RankStanding, ...]], None]) -> None:
        """Call `emit` with all ranks."""
        self._emit = emit
        self._last: tuple[RankStanding, ...] = ()
        self._emitted_at = float("-inf")

    def add(self, views: Sequence[RankView]) -> None:
        """Add a look at all ranks."""
        since = monotonic() - self._emitted_at
        if since < max(_STANDINGS_SECONDS, len(views) / _RANKS_PER_SECOND):
            return
        standings = list_standings(views)
        places = tuple(replace(one, still_seconds=0.0) for one in standings)
        if places == self._last and since < _UNCHANGED_SECONDS:
            return
        self._last, self._emitted_at = places, monotonic()
        self._emit(standings)


class PreflightEvents:
    """Turns what happens in a preflight into events, and passes each to a listener at once."""

    def __init__(self, measured: Sequence[str], listener: Callable[[RunEvent], None] | None) -> None:
        """Emit events of the snapshot, these measurements and the judgement; none without a listener."""
        self._stages = (LOOK, *measured, JUDGE)
        self._listener = listener
        self._started = monotonic()
        self._done = 0
        self.standings = StandingEvents(lambda ranks: self._emit(EventKind.RANKS, ranks=ranks))

    def enter(self, stage: str) -> None:
        """Emit that a stage begins; earlier ones are done, or were not needed."""
        self._done = self._stages.index(stage)
        self._emit(EventKind.STAGE, stage=stage)

    def listen_to_tests(self, tests: Sequence[str]) -> Callable[[RankEvent], None]:
        """A listener for the ranks of active tests; it emits each test when the first rank enters it."""
        waiting = list(tests)

        def come_to(position: int) -> None:
            while len(tests) - len(waiting) <= position and waiting:
                self._emit(EventKind.STAGE, stage=waiting.pop(0))

        def add(event: RankEvent) -> None:
            if event.data.get("kind") == "done":
                come_to(tests.index(event.data["test"]) + 1)

        come_to(0)
        return add

    def emit_report(self, report: Report) -> None:
        """Emit the findings and, as the last event, the outcome."""
        self._done = len(self._stages)
        for finding in report.findings():
            self._emit(EventKind.FINDING, finding=finding)
        self._emit(EventKind.OUTCOME, outcome=report.verdict.value)

    def _emit(self, kind: EventKind, **what: Any) -> None:
        if self._listener is not None:
            seconds = monotonic() - self._started
            self._listener(RunEvent(kind, seconds, self._done, len(self._stages), **what))


class TrainingEvents:
    """Turns what happens in a training run into events, and passes each to a listener at once."""

    def __init__(self, planned: int, listener: Callable[[RunEvent], None] | None) -> None:
        """Emit events of `planned` strategies; none without a listener."""
        self._planned = planned
        self._listener = listener
        self._started = monotonic()
        self._done = 0
        self._stage = IMPORT
        self.standings = StandingEvents(lambda ranks: self._emit(EventKind.RANKS, ranks=ranks))

    def start_ranks(self) -> None:
        """Emit that the ranks of a strategy, or of a script, are starting."""
        self._enter(IMPORT)

    def add(self, event: RankEvent) -> None:
        """Emit the stage that the event shows the first rank to have entered, if any.

        Earlier events of other ranks may be read later: a run never goes back to an earlier stage.
        """
        stage = _STAGE_AFTER.get(event.data.get("kind", ""))
        if stage is not None and _ORDER.index(stage) > _ORDER.index(self._stage):
            self._enter(stage)

    def emit_result(self, result: StrategyResult) -> None:
        """Emit that a strategy is done."""
        self._done += 1
        self._emit(EventKind.RESULT, strategy=result)

    def emit_report(self, report: TrainingReport) -> None:
        """Emit the findings and, as the last event, the outcome."""
        for finding in report.findings:
            self._emit(EventKind.FINDING, finding=finding)
        self._emit(EventKind.OUTCOME, outcome=report.outcome.value)

    def _enter(self, stage: str) -> None:
        self._stage = stage
        self._emit(EventKind.STAGE, stage=stage)

    def _emit(self, kind: EventKind, **what: Any) -> None:
        if self._listener is not None:
            seconds = monotonic() - self._started
            self._listener(RunEvent(kind, seconds, self._done, self._planned, **what))
