"""What an agent knows about the others, should it have to lead."""

from dataclasses import dataclass, field

from gpudiag.ranks.meeting import Address
from gpudiag.ranks.process import Machine
from gpudiag.ranks.view import RankView


@dataclass(frozen=True, slots=True)
class AgentPlace:
    """Where the agent of a rank runs, and where it can be reached from other machines."""

    pid: int
    machine: Machine
    address: tuple[str, int] | None = None


@dataclass(slots=True)
class Roster:
    """Kept up to date by what leaders tell, and by which agents can be reached."""

    # What every rank was doing, and where the agents are that have come.
    views: tuple[RankView, ...] = ()
    agents: dict[int, AgentPlace] = field(default_factory=dict)
    # Ranks that led and are gone; that led and say nothing, since when; that have no agent to talk to.
    leaders_lost: set[int] = field(default_factory=set)
    leaders_silent: dict[int, float] = field(default_factory=dict)
    unreachable: set[int] = field(default_factory=set)

    @property
    def met(self) -> bool:
        """Whether there has been a leader: then every agent is up that ever will be."""
        return bool(self.agents or self.leaders_lost or self.leaders_silent)

    @property
    def gone(self) -> set[int]:
        """Ranks that cannot lead."""
        return self.leaders_lost | self.leaders_silent.keys() | self.unreachable

    @property
    def addresses(self) -> dict[int, Address]:
        """Where agents listen for other machines."""
        return {rank: place.address for rank, place in self.agents.items() if place.address is not None}
