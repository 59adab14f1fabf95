"""A run: the events it writes as it goes on, a line of `--events` each; and one that a service shows."""

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Union

from gpudiag.compat import StrEnum
from gpudiag.model.finding import Finding
from gpudiag.model.measure import CollectiveResult
from gpudiag.model.training import StrategyResult

# --- what a run reports while it continues


class EventKind(StrEnum):
    """What an event reports."""

    STAGE = "stage"  # the ranks, or a preflight, entered a stage
    RESULT = "result"  # a size is done on all ranks, or a strategy
    FINDING = "finding"
    RANKS = "ranks"  # where all ranks are, when that has changed; at most once a second
    OUTCOME = "outcome"  # the last event of a run


@dataclass(frozen=True, slots=True)
class RankStanding:
    """Where one rank of a run is, and whether it waits for others.

    `operation` is the collective that it is inside, such as `all_reduce float32[1024]`, or local work. A rank
    that `waits` does so for all those that are `behind`: they have entered the fewest stages and collectives.
    """

    rank: int
    host: str
    life: str  # not_started, alive, stopped or ended
    stage: str
    operation: str | None
    iteration: int | None  # of the timed ones, from 0
    waits: bool
    behind: bool
    still_seconds: float  # since it moved last, when the event was written


@dataclass(frozen=True, slots=True)
class RunEvent:
    """`gpudiag.event/1`: one thing that happened in a run, `at_seconds` after it started.

    `done` of `planned` results were there then. Exactly the field that `kind` names is set; of a
    strategy of `gpudiag train` that is done, `strategy` instead of `result`. There may be more kinds in
    later versions.
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
    ranks: tuple[RankStanding, ...] = ()


# --- a run that a service shows

PlanValue = Union[str, int, float, bool, tuple[str, ...], None]  # noqa: UP007 - used at run time


class RunState(StrEnum):
    """Where a run is."""

    QUEUED = "queued"
    RUNNING = "running"
    CANCELLING = "cancelling"
    SUCCEEDED = "succeeded"  # it ended with a verdict, good or bad
    FAILED = "failed"  # it gave no verdict, or crashed
    CANCELLED = "cancelled"
    LOST = "lost"  # the service ended while it ran


ENDED = (RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED, RunState.LOST)


@dataclass(frozen=True, slots=True)
class Run:
    """`gpudiag.run/1`: one run that the service started, or the ended job of a `gpudiag run` (kind `run`).

    `gpus` are the UUIDs that it may use, empty for all or none; `lock` is what no other run may hold
    during the run: UUIDs, or `host` for a run without GPUs.
    """

    SCHEMA: ClassVar[str] = "gpudiag.run/1"

    id: str
    kind: str
    state: RunState
    plan: dict[str, PlanValue]
    gpus: tuple[str, ...]
    lock: tuple[str, ...]
    command: str
    deadline_seconds: float | None  # None: a job of `gpudiag run`, which may take as long as it wants
    requested_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    outcome: str | None = None  # pass, warn or fail
    exit_status: int | None = None
    reason: str | None = None  # why there is no outcome; of a job the verdict's sentence
    stage: str | None = None
    done: int = 0
    planned: int = 0
    progress: float | None = None
    has_report: bool = False
    report_formats: tuple[str, ...] = ()  # formats of its report
    queue_position: int | None = None
    log_bytes: int = 0
    interpreter: str | None = None  # as in the request: a name of the operator's list


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What a client asks for; the plan is one of the kind's own."""

    kind: str
    plan: dict[str, PlanValue]
    gpus: tuple[str, ...] = ()
    queue: bool = False
    force: bool = False
    interpreter: str | None = None  # a name of the operator's list; None: the service's own


@dataclass(frozen=True, slots=True)
class NumberedEvent:
    """One event of a run, counted from 1."""

    number: int
    event: RunEvent


@dataclass(frozen=True, slots=True)
class RunEvents:
    """`gpudiag.run_events/1`: what a run has reported."""

    SCHEMA: ClassVar[str] = "gpudiag.run_events/1"

    run: str
    events: tuple[NumberedEvent, ...]


@dataclass(frozen=True, slots=True)
class RunNews:
    """Something about a run that is no change of its state: the name of the live event and its JSON."""

    name: str
    text: str


RunUpdate = Union[Run, RunNews]  # noqa: UP007 - used at run time
