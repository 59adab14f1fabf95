"""The stages every rank goes through, how long it may stay in each without progress, and where a rank is."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

# --- the stages

IMPORT = "import"
RENDEZVOUS = "rendezvous"
INIT = "init"
WARMUP = "warmup"
MEASURE = "measure"
VERIFY = "verify"
TEARDOWN = "teardown"
STAGES = (IMPORT, RENDEZVOUS, INIT, WARMUP, MEASURE, VERIFY, TEARDOWN)
# In these ranks wait for those that are still to come.
STARTING_STAGES = (IMPORT, RENDEZVOUS, INIT)

# torch's own timeouts are 10 minutes for NCCL and 30 for gloo, too long to wait for a first message.
# The slow steps are an import from a cold network file system and the first CUDA context.
DEFAULT_STAGE_SECONDS: Mapping[str, float] = MappingProxyType(
    {
        IMPORT: 120.0,
        RENDEZVOUS: 120.0,
        INIT: 120.0,
        WARMUP: 60.0,
        MEASURE: 60.0,
        VERIFY: 60.0,
        TEARDOWN: 30.0,
    }
)

# DESIGN.md section 6: the stall limit of one operation is max(1 s, 10 x its predicted time).
STALL_FLOOR_SECONDS = 1.0
STALL_FACTOR = 10.0
# In a run with a time limit, no step takes this long.
STUCK_AT_END_SECONDS = 8.0


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds that a suspected failure must last beyond the suspicion, by kind of failure."""

    stopped_seconds: float  # a stopped process
    behind_seconds: float  # a rank that has not reached the point where the others wait
    inside_seconds: float  # ranks that are all inside collectives: an outage between them
    silent_seconds: float  # an agent that sends nothing


NONE = Patience(0.0, 0.0, 0.0, 0.0)

# A stopped or missing rank is certain within 2.5 s; a machine that pauses for 1.5 s is not blamed. TCP
# retransmits a lost segment after 0.2, 0.6, 1.4, 3 and 6.2 s (RFC 6298, with Linux's minimum of 0.2 s),
# so that an outage of a second may hold ranks up for three.
USUAL = Patience(stopped_seconds=1.7, behind_seconds=1.2, inside_seconds=9.0, silent_seconds=1.0)

# If the user limits the run's time, any failure that heals within that limit counts as healed.
ENDLESS = Patience(math.inf, math.inf, math.inf, math.inf)


@dataclass(frozen=True, slots=True)
class Budgets:
    """How long a run and its parts may take.

    `stage_seconds`: in a stage without an operation entered or left; `run_seconds`: the whole run, None: by
    stages; `patience`: for failures that may heal, until `run_seconds`.
    """

    stage_seconds: Mapping[str, float] = field(default_factory=lambda: DEFAULT_STAGE_SECONDS)
    run_seconds: float | None = None
    patience: Patience = USUAL

    def seconds_for(self, stage: str) -> float:
        """Seconds that a rank may stay in `stage` without progress; unknown stages get `measure`'s."""
        fallback = self.stage_seconds.get(MEASURE, DEFAULT_STAGE_SECONDS[MEASURE])
        return self.stage_seconds.get(stage, fallback)

    def at_the_end(self, load: float) -> "Budgets":
        """The same budgets for a run out of time: a rank that makes no progress then is not merely slow."""
        limit = STUCK_AT_END_SECONDS * load
        working = {stage: min(limit, self.seconds_for(stage)) for stage in (WARMUP, MEASURE, VERIFY)}
        return replace(self, stage_seconds={**self.stage_seconds, **working})


def stall_limit_seconds(predicted_seconds: float) -> float:
    """Seconds after which an operation that should take `predicted_seconds` counts as stalled."""
    return max(STALL_FLOOR_SECONDS, STALL_FACTOR * predicted_seconds)


# --- where a rank is

Place = tuple[str, int]  # file and line


@dataclass(frozen=True, slots=True)
class Operation:
    """One collective, or local step of the rank, as announced before entering it."""

    sequence: int
    op: str
    dtype: str
    elements: int
    predicted_seconds: float | None
    stage: str | None = None  # in which it was entered; None if no longer recorded

    @property
    def alone(self) -> bool:
        """Whether it is local work of this rank, which waits for no other: it moves no elements."""
        return self.elements == 0

    def describe(self) -> str:
        """The operation in words: `all_reduce float32[1024]`; a step without data is its name alone."""
        return f"{self.op} {self.dtype}[{self.elements}]" if self.dtype else self.op


@dataclass(frozen=True, slots=True)
class Position:
    """Where a rank last reported to be. Times are CLOCK_MONOTONIC of its machine, in seconds."""

    stage: str
    stage_count: int  # stages entered so far; all ranks enter the same stages in the same order
    operation: Operation | None  # the last one entered
    inside: bool  # whether the rank is still inside `operation`
    entered_at: float | None  # when it entered `operation`
    moved_at: float  # when it last entered or left a stage or an operation
    iteration: int | None  # timed iteration, from 0 over the whole run
    place: str | None  # file:line of the code that announced it
    # Read only when asked for, oldest first. Of consecutive operations that are alike and in one stage
    # only the first is listed; `stages` are the last ones entered.
    history: tuple[Operation, ...] = ()
    stages: tuple[str, ...] = ()

    def is_same_place(self, other: "Position | None") -> bool:
        """Whether the rank has not moved since `other` was read."""
        if other is None:
            return False
        return (self.moved_at, self.iteration, self.progress) == (
            other.moved_at,
            other.iteration,
            other.progress,
        )

    @property
    def progress(self) -> tuple[int, int]:
        """Stages and collectives entered; all ranks go through the same ones in the same order."""
        return self.stage_count, self.entered

    def stage_after(self, count: int) -> str | None:
        """The stage that this rank entered after its first `count` ones; None if no longer recorded."""
        place = count - self.stage_count + len(self.stages)
        return self.stages[place] if 0 <= place < len(self.stages) else None

    def operation_at(self, sequence: int) -> Operation | None:
        """What the rank entered as collective `sequence`; None if not entered yet, or no longer recorded."""
        if sequence >= self.entered:
            return None
        earlier = [operation for operation in self.history if operation.sequence <= sequence]
        return max(earlier, key=lambda operation: operation.sequence, default=None)

    @property
    def entered(self) -> int:
        """How many collectives the rank has entered."""
        return 0 if self.operation is None else self.operation.sequence + 1
