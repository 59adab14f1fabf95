"""The stages every rank goes through, and how long a rank may stay in each without getting anywhere."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

IMPORT = "import"
RENDEZVOUS = "rendezvous"
INIT = "init"
WARMUP = "warmup"
MEASURE = "measure"
VERIFY = "verify"
TEARDOWN = "teardown"
STAGES = (IMPORT, RENDEZVOUS, INIT, WARMUP, MEASURE, VERIFY, TEARDOWN)

# torch's own limits are 10 minutes for NCCL and 30 for gloo; nobody should wait that long for a
# first word. An import from a cold network file system and a first CUDA context are the slow ones.
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
# No step of a run that is given a time of its own takes as long.
STUCK_AT_END_SECONDS = 8.0


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds beyond the suspicion, by what is suspected."""

    stopped_seconds: float  # a process that somebody holds
    behind_seconds: float  # a rank that has not come where the others wait
    inside_seconds: float  # ranks that are all inside collectives: an outage between them
    unheard_seconds: float  # an agent that says nothing


NONE = Patience(0.0, 0.0, 0.0, 0.0)

# A stop, and a rank that stays away, are certain within two and a half seconds: a machine that is paused
# for one and a half is not. TCP sends a lost segment again after 0.2, 0.6, 1.4, 3 and 6.2 s (RFC 6298,
# with Linux's minimum of 0.2 s), so that an outage of a second may hold ranks up for three.
USUAL = Patience(stopped_seconds=1.7, behind_seconds=1.2, inside_seconds=9.0, unheard_seconds=1.0)

# Where the user says how long the run may take: whatever heals within that is healed.
ENDLESS = Patience(math.inf, math.inf, math.inf, math.inf)


@dataclass(frozen=True, slots=True)
class Budgets:
    """How long a run and its parts may take.

    `stage_seconds` bounds the time a rank stays in a stage without progress (no operation entered
    or left), not the stage as a whole. `run_seconds` bounds the whole run; None leaves that to the
    stages. `patience` is with what may heal; what has not when `run_seconds` are over is told then.
    """

    stage_seconds: Mapping[str, float] = field(default_factory=lambda: DEFAULT_STAGE_SECONDS)
    run_seconds: float | None = None
    patience: Patience = USUAL

    def seconds_for(self, stage: str) -> float:
        """Seconds without progress that a rank is granted in `stage`; unknown stages get `measure`'s."""
        fallback = self.stage_seconds.get(MEASURE, DEFAULT_STAGE_SECONDS[MEASURE])
        return self.stage_seconds.get(stage, fallback)

    def at_the_end(self, load: float) -> "Budgets":
        """The same for a run whose time is over: a rank that stands still in its work has not merely been slow."""
        limit = STUCK_AT_END_SECONDS * load
        working = {stage: min(limit, self.seconds_for(stage)) for stage in (WARMUP, MEASURE, VERIFY)}
        return replace(self, stage_seconds={**self.stage_seconds, **working})


def stall_limit_seconds(predicted_seconds: float) -> float:
    """Seconds after which an operation that should take `predicted_seconds` counts as stalled."""
    return max(STALL_FLOOR_SECONDS, STALL_FACTOR * predicted_seconds)
