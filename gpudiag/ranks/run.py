"""What comes back from running ranks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpudiag.model.measure import Incident, InjectedFault, RankReport


@dataclass(frozen=True, slots=True)
class RankEvent:
    """One event that a rank's entry emitted, `at_seconds` after the run started."""

    rank: int
    at_seconds: float
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RankRun:
    """One run of an entry on its ranks: what they returned, and what happened to them.

    `incidents` come cause first; nothing in them means that every rank returned a result and ended
    with status 0. `results` has the payload of each rank that returned one, also when another rank
    failed. `reporter` says whether this process is the one that tells the user: under a launcher
    every process gets the same run, and exactly one has it True.
    """

    world_size: int
    launcher: str
    host: str
    reports: tuple[RankReport, ...]
    incidents: tuple[Incident, ...]
    results: Mapping[int, Mapping[str, Any]]
    events: tuple[RankEvent, ...]
    injected: tuple[InjectedFault, ...]
    seconds: float
    timed_out: bool = False  # the budget for the whole run ran out, and no rank was to blame
    reporter: bool = True
