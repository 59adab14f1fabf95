"""What the leading agent knows of one rank of another agent."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from gpudiag.model import codec
from gpudiag.ranks import evidence, process
from gpudiag.ranks.clock import SAME_CLOCK, ClockComparison, ClockOffset
from gpudiag.ranks.dump import RankDump
from gpudiag.ranks.ledger import RawEvent
from gpudiag.ranks.link import Link
from gpudiag.ranks.process import Machine
from gpudiag.ranks.roster import AgentPlace
from gpudiag.ranks.view import Life, RankView

# Agents report every tenth of a second; only a longer gap is worth a figure.
_UNHEARD_FLOOR_SECONDS = 0.5


@dataclass(slots=True)
class RemoteRecord:
    """One rank of another agent. Its view keeps the times of that agent's clock."""

    rank: int
    own_machine: Machine
    view: RankView
    place: AgentPlace | None = None
    link: Link | None = None
    lost: bool = False
    silent_since: float | None = None  # it led, and stopped to do its work
    ended: bool = False  # its agent has killed it after the verdict
    unkillable: tuple[int, ...] = ()
    dumps: tuple[RankDump, ...] | None = None  # None: not asked, or not answered yet
    comparison: ClockComparison = field(default_factory=ClockComparison)
    held: list[dict[str, Any]] = field(default_factory=list)  # events that came before its clock was known

    @property
    def offset(self) -> ClockOffset | None:
        """From its clock to ours; None while it is not known."""
        if self.place is None or self.place.machine.clock == self.own_machine.clock:
            return SAME_CLOCK
        return self.comparison.offset()

    @property
    def needs_clock(self) -> bool:
        """Whether its clock is another one, and has not been asked often enough to be known well."""
        return self.offset is not SAME_CLOCK and not self.comparison.is_complete

    @property
    def pid_here(self) -> int | None:
        """The agent's pid, where it means something on this machine."""
        if self.place is None or self.place.machine.process_table != self.own_machine.process_table:
            return None
        return self.place.pid

    def current_view(self) -> RankView:
        """The rank as the watchdog sees it; times are our CLOCK_MONOTONIC."""
        offset = self.offset or SAME_CLOCK
        view = self.view if offset is SAME_CLOCK else self.view.counted_from(offset.seconds)
        unheard = self.link.unheard_seconds if self.link is not None else 0.0
        if self.silent_since is not None:
            unheard = time.monotonic() - self.silent_since
        if unheard < _UNHEARD_FLOOR_SECONDS or self.ended:
            return view
        traces = view.traces
        if self.pid_here is not None:
            traces = (*traces, *evidence.of_agent_process(process.read_process(self.pid_here)))
        return replace(view, unheard_seconds=unheard, traces=traces)

    def take_report(self, message: dict[str, Any]) -> list[RawEvent]:
        """Keep the view in it; the events in it, and those held so far, with times of our clock."""
        self.view = codec.decode(RankView, message["view"])
        self.held += message["events"]
        return self.release_events()

    def take_clock(self, message: dict[str, Any]) -> list[RawEvent]:
        """Compare clocks; the events that were held because ours could not be told from theirs."""
        self.comparison.take(message["asked_at"], message["theirs"], time.monotonic())
        return self.release_events()

    def release_events(self) -> list[RawEvent]:
        """The events held, with times of our clock; none while its offset is not known."""
        offset = self.offset
        if offset is None:
            return []
        events, self.held = self.held, []
        return [(self.rank, {**event, "at": event["at"] - offset.seconds}) for event in events]

    def lose(self) -> None:
        """Note that the agent is gone, and that its rank, which the kernel kills with it, is so too."""
        if self.link is not None:
            self.link.close()
        self.link, self.lost = None, True
        if self.view.life is not Life.ENDED:
            self.view = replace(
                self.view,
                life=Life.ENDED,
                exit=None,
                changed_at=time.monotonic() + (self.offset or SAME_CLOCK).seconds,
                traces=(*self.view.traces, evidence.of_lost_agent()),
            )

    def kill_agent(self) -> None:
        """Kill an agent of this machine that does not answer; its rank dies with it."""
        if self.pid_here is not None:
            process.kill(self.pid_here)


# Where a rank runs that never came from another machine.
UNKNOWN_HOST = "a host unknown here"


def absent_records(ranks: Iterable[int], own_machine: Machine, host: str) -> dict[int, RemoteRecord]:
    """Records of ranks whose agents have not come yet; `host` is where they must be."""
    return {
        rank: RemoteRecord(
            rank, own_machine, RankView(rank=rank, local_rank=rank, host=host, life=Life.NOT_STARTED)
        )
        for rank in ranks
    }
