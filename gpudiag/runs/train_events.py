"""What `gpudiag train` tells while it goes on: stages, each strategy when it is done, findings, the outcome."""

from collections.abc import Callable
from time import monotonic
from typing import Any

from gpudiag.model.event import EventKind, RunEvent
from gpudiag.model.training import StrategyResult, TrainingReport
from gpudiag.ranks.run import RankEvent
from gpudiag.ranks.stages import IMPORT, MEASURE, VERIFY

# Ranks tell their start when they are about to train, and their proof when only the timed steps are left.
_STAGE_AFTER = {"start": VERIFY, "proof": MEASURE}
_ORDER = (IMPORT, VERIFY, MEASURE)


class TrainingTeller:
    """Makes events of what happens in a run, and hands each to a listener at once."""

    def __init__(self, planned: int, listener: Callable[[RunEvent], None] | None) -> None:
        """Tell of so many strategies; without a listener nobody is told anything."""
        self._planned = planned
        self._listener = listener
        self._started = monotonic()
        self._done = 0
        self._stage = IMPORT

    def start_ranks(self) -> None:
        """Tell that the ranks of a strategy, or of a script, are started."""
        self._enter(IMPORT)

    def take(self, event: RankEvent) -> None:
        """Tell the stage that the first rank entered, if what it told means that it did.

        What another rank told earlier may be read later: a run never goes back to an earlier stage.
        """
        stage = _STAGE_AFTER.get(event.data.get("kind", ""))
        if stage is not None and _ORDER.index(stage) > _ORDER.index(self._stage):
            self._enter(stage)

    def tell_result(self, result: StrategyResult) -> None:
        """Tell that a strategy is done."""
        self._done += 1
        self._tell(EventKind.RESULT, strategy=result)

    def tell_report(self, report: TrainingReport) -> None:
        """Tell the findings and, as the last event, the outcome."""
        for finding in report.findings:
            self._tell(EventKind.FINDING, finding=finding)
        self._tell(EventKind.OUTCOME, outcome=report.outcome.value)

    def _enter(self, stage: str) -> None:
        self._stage = stage
        self._tell(EventKind.STAGE, stage=stage)

    def _tell(self, kind: EventKind, **what: Any) -> None:
        if self._listener is not None:
            seconds = monotonic() - self._started
            self._listener(RunEvent(kind, seconds, self._done, self._planned, **what))
