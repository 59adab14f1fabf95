"""What an agent knows about the others, should it have to lead."""

from dataclasses import dataclass, field

from gpudiag.ranks.view import RankView


@dataclass(slots=True)
class Roster:
    """Kept up to date by what leaders tell, and by which agents can be reached."""

    views: tuple[RankView, ...] = ()
    agent_pids: dict[int, int] = field(default_factory=dict)  # of the agents that have come
    leaders_lost: set[int] = field(default_factory=set)  # ranks that led, and are gone
    leaders_silent: dict[int, float] = field(
        default_factory=dict
    )  # that led, and since when they say nothing
    unreachable: set[int] = field(default_factory=set)  # ranks without an agent to talk to

    @property
    def met(self) -> bool:
        """Whether there has been a leader: then every agent is up that ever will be."""
        return bool(self.agent_pids or self.leaders_lost or self.leaders_silent)

    @property
    def gone(self) -> set[int]:
        """Ranks that cannot lead."""
        return self.leaders_lost | self.leaders_silent.keys() | self.unreachable
