"""Events of a run while it goes on: one line of `--events` each."""

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from gpudiag.model.finding import Finding
from gpudiag.model.measure import CollectiveResult
from gpudiag.model.training import StrategyResult


class EventKind(StrEnum):
    """What an event reports."""

    STAGE = "stage"  # the ranks, or a preflight, entered a stage
    RESULT = "result"  # a size is done on all ranks, or a strategy
    FINDING = "finding"
    OUTCOME = "outcome"  # the last event of a run


@dataclass(frozen=True, slots=True)
class RunEvent:
    """`gpudiag.event/1`: one thing that happened in a run, `at_seconds` after it started.

    `done` of `planned` results were there then. Exactly the field that `kind` names is set; of a
    strategy of `gpudiag train` that is done, `strategy` instead of `result`.
    """

    SCHEMA: ClassVar[str] = "gpudiag.event/1"

    kind: EventKind
    at_seconds: float
    done: int
    planned: int
    stage: str | None = None
    result: CollectiveResult | None = None
    finding: Finding | None = None
    outcome: str | None = None
    strategy: StrategyResult | None = None
