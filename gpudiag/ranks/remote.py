"""The ranks of other agents, as the leading agent knows them: by what those agents report."""

import os
import socket
import time
from dataclasses import dataclass, replace
from typing import Any

from gpudiag.model import codec
from gpudiag.ranks import evidence, process
from gpudiag.ranks.dump import RankDump
from gpudiag.ranks.ledger import RawEvent
from gpudiag.ranks.link import Link, LinkLostError
from gpudiag.ranks.roster import Roster
from gpudiag.ranks.start_error import StartFailure
from gpudiag.ranks.view import Life, RankView
from gpudiag.ranks.watchdog import UNHEARD_SECONDS

# Agents report every tenth of a second; only a longer gap is worth a figure.
_UNHEARD_FLOOR_SECONDS = 0.5

# How long the agents get to kill their ranks after the verdict; each needs two seconds at most.
_END_SECONDS = 3.0

# How long other agents get to ask their ranks for stacks, which takes them half a second at most.
_DUMP_SECONDS = 1.0

# How long the leader waits for agents before it tells all of them that nothing comes of the run.
_GATHER_SECONDS = 2.0

# How often the followers are told what the leader knows, so that any of them can take over.
_TELL_SECONDS = 0.5


@dataclass(slots=True)
class RemoteRecord:
    """One rank of another agent."""

    rank: int
    view: RankView
    link: Link | None = None
    agent_pid: int | None = None
    lost: bool = False
    silent_since: float | None = None  # it led, and stopped to do its work
    ended: bool = False  # its agent has killed it after the verdict
    unkillable: tuple[int, ...] = ()
    dumps: tuple[RankDump, ...] | None = None  # None: not asked, or not answered yet


class RemoteRanks:
    """All ranks but this agent's own: accepts their agents, keeps what they report, ends them."""

    def __init__(self, listener: socket.socket, world_size: int, own_rank: int, host: str) -> None:
        """Wait on `listener` for the agents of all ranks but `own_rank`."""
        self.interrupted = False  # one of the agents was told to give up
        self.start_failure: tuple[StartFailure, str] | None = None  # with what its template wrote
        self._listener = listener
        self._host = host
        self._own_rank = own_rank
        self._greeting: list[Link] = []  # connected, rank not yet said
        self._told_at = 0.0
        self._records = {
            rank: RemoteRecord(rank, RankView(rank=rank, local_rank=rank, host=host, life=Life.NOT_STARTED))
            for rank in range(world_size)
            if rank != own_rank
        }

    def remember(self, roster: Roster) -> None:
        """Start from what the last leaders told, and from which agents are gone."""
        for view in roster.views:
            if view.rank in self._records:
                self._records[view.rank].view = view
        for rank, agent_pid in roster.agent_pids.items():
            if rank in self._records:
                self._records[rank].agent_pid = agent_pid
        for rank, silent_since in roster.leaders_silent.items():
            self._records[rank].silent_since = silent_since
        for rank in roster.leaders_lost | (roster.unreachable & roster.agent_pids.keys()):
            self._lose(self._records[rank])

    def filenos(self) -> list[int]:
        """The descriptors to wait for."""
        links = [record.link for record in self._records.values() if record.link is not None]
        return [self._listener.fileno(), *(link.fileno() for link in (*links, *self._greeting))]

    def poll(self) -> list[RawEvent]:
        """Take in what has come; the events among it, with their rank."""
        self._accept()
        events = [event for link in tuple(self._greeting) for event in self._greet(link)]
        for record in self._records.values():
            if record.link is not None:
                events += self._receive(record, record.link)
        return events

    def views(self) -> tuple[RankView, ...]:
        """Every remote rank as the watchdog sees it; times are CLOCK_MONOTONIC."""
        return tuple(map(self._current_view, self._records.values()))

    @property
    def unkillable(self) -> tuple[int, ...]:
        """Pids of ranks that their agents could not kill."""
        return tuple(pid for record in self._records.values() for pid in record.unkillable)

    def tell(self, views: tuple[RankView, ...]) -> None:
        """Tell the followers, twice a second, what the leader knows of every rank."""
        if time.monotonic() - self._told_at < _TELL_SECONDS:
            return
        self._told_at = time.monotonic()
        agent_pids = {record.rank: record.agent_pid for record in self._records.values() if record.agent_pid}
        self.send("views", views=codec.encode(views), agent_pids={**agent_pids, self._own_rank: os.getpid()})

    def send(self, kind: str, **fields: Any) -> None:
        """Send one message to every agent that is connected."""
        for record in self._records.values():
            if record.link is not None:
                record.link.send(kind, **fields)

    def await_greetings(self) -> None:
        """Wait two seconds at most until every agent is connected, so that all can be told something."""
        deadline = time.monotonic() + _GATHER_SECONDS
        while time.monotonic() < deadline and any(record.link is None for record in self._records.values()):
            time.sleep(0.01)
            self.poll()

    def collect_dumps(self) -> tuple[RankDump, ...]:
        """What the ranks of agents that were sent `dump` told, as far as it comes within a second."""
        deadline = time.monotonic() + _DUMP_SECONDS
        while time.monotonic() < deadline and any(
            record.link is not None and record.dumps is None for record in self._records.values()
        ):
            time.sleep(0.01)
            self.poll()
        return tuple(dump for record in self._records.values() for dump in record.dumps or ())

    def await_end(self) -> None:
        """Wait until every agent that was sent `end` has killed its rank; kill those that do not answer."""
        deadline = time.monotonic() + _END_SECONDS
        while self._still_ending() and time.monotonic() < deadline:
            time.sleep(0.01)
            self.poll()
        for record in self._records.values():
            unanswered = not record.ended and not record.lost
            if unanswered and record.agent_pid is not None and record.view.host == self._host:
                process.kill(record.agent_pid)  # its ranks die with it

    def release_links(self) -> list[Link]:
        """The lines that are open, which are the caller's to close from now on."""
        links = [record.link for record in self._records.values() if record.link is not None]
        for record in self._records.values():
            record.link = None
        return links

    def close(self) -> None:
        """Close every line that is still open."""
        for link in (*self.release_links(), *self._greeting):
            link.close()

    def _still_ending(self) -> bool:
        return any(
            record.link is not None and not record.ended and record.link.unheard_seconds < UNHEARD_SECONDS
            for record in self._records.values()
        )

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # nobody is waiting
                break
            self._greeting.append(Link(connection))

    def _greet(self, link: Link) -> list[RawEvent]:
        """Find out whose line this is; the events that came with the greeting."""
        try:
            received = link.receive()
        except LinkLostError:
            self._greeting.remove(link)
            link.close()
            return []
        if not received:
            return []
        self._greeting.remove(link)
        hello, *messages = received
        record = self._records.get(hello["rank"])
        if hello["kind"] != "hello" or record is None:
            link.close()
            return []
        record.link, record.agent_pid, record.lost = link, hello["agent_pid"], False
        self._told_at = 0.0  # let the others know at once
        return [event for message in messages for event in self._take(record, message)]

    def _receive(self, record: RemoteRecord, link: Link) -> list[RawEvent]:
        try:
            messages = link.receive()
        except LinkLostError:
            self._lose(record)
            return []
        events: list[RawEvent] = []
        for message in messages:
            events += self._take(record, message)
        return events

    def _take(self, record: RemoteRecord, message: dict[str, Any]) -> list[RawEvent]:
        kind = message["kind"]
        if kind == "report":
            record.view = codec.decode(RankView, message["view"])
            return [(record.rank, event) for event in message["events"]]
        if kind == "ended":
            record.ended, record.unkillable = True, tuple(message["unkillable"])
        elif kind == "dump":
            record.dumps = codec.decode(tuple[RankDump, ...], message["dumps"])
        elif kind == "interrupted":
            self.interrupted = True
        elif kind == "start_failure":
            self.start_failure = codec.decode(StartFailure, message["failure"]), message["stderr"]
        return []

    def _lose(self, record: RemoteRecord) -> None:
        """Note that the agent is gone, and that its rank, which the kernel kills with it, is so too."""
        if record.link is not None:
            record.link.close()
        record.link, record.lost = None, True
        if record.view.life is not Life.ENDED:
            record.view = replace(
                record.view,
                life=Life.ENDED,
                exit=None,
                changed_at=time.monotonic(),
                traces=(*record.view.traces, evidence.of_lost_agent()),
            )

    def _current_view(self, record: RemoteRecord) -> RankView:
        unheard = record.link.unheard_seconds if record.link is not None else 0.0
        if record.silent_since is not None:
            unheard = time.monotonic() - record.silent_since
        if unheard < _UNHEARD_FLOOR_SECONDS or record.ended:
            return record.view
        traces = record.view.traces
        if record.agent_pid is not None and record.view.host == self._host:
            traces = (*traces, *evidence.of_agent_process(process.read_process(record.agent_pid)))
        return replace(record.view, unheard_seconds=unheard, traces=traces)
