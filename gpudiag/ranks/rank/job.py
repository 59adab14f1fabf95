"""The job that the agent gives the template process, and so the ranks, in a file of the run directory."""

from dataclasses import dataclass
from typing import Any

from gpudiag.ranks.inject import Fault


@dataclass(frozen=True, slots=True)
class LocalRank:
    """One rank that runs on this machine, and its page on the position board."""

    rank: int
    local_rank: int


@dataclass(frozen=True, slots=True)
class Job:
    """All that a rank needs to know before it loads its entry."""

    entry: str  # module:function
    arguments: dict[str, Any]
    ranks: tuple[LocalRank, ...]  # in the order of their pages
    world_size: int
    local_world_size: int
    init_method: str
    rendezvous_timeout_seconds: float
    operation_timeout_seconds: float
    preload: tuple[str, ...]  # modules to import once, before the ranks are forked
    try_preload: tuple[str, ...]  # the same, but a module may be absent: each rank finds out for itself
    faults: tuple[Fault, ...]
    run_directory: str
    agent_pid: int
