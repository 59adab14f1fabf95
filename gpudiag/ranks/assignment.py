"""One run as one agent has to see it through."""

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from gpudiag.ranks.interrupts import Interrupts
from gpudiag.ranks.job import Job
from gpudiag.ranks.local import LocalRanks
from gpudiag.ranks.run import RankEvent
from gpudiag.ranks.siblings import Siblings
from gpudiag.ranks.stages import Budgets


@dataclass(frozen=True, slots=True)
class Assignment:
    """The agent's own ranks, what they are to do, and the limits; the run starts when this is made."""

    job: Job
    local: LocalRanks
    budgets: Budgets
    interrupts: Interrupts
    on_event: Callable[[RankEvent], None] | None
    is_over: Callable[[], bool] | None  # the caller has seen enough
    siblings: Siblings | None = None  # the launcher's other processes, where it started this one
    host: str = field(default_factory=socket.gethostname)
    started: float = field(default_factory=time.monotonic)  # CLOCK_MONOTONIC, in seconds
