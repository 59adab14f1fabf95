"""The ranks of other agents, as the leading agent knows them from those agents' reports."""

import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from gpudiag.linux.child import kill
from gpudiag.linux.namespaces import Machine
from gpudiag.linux.proc import find_process
from gpudiag.model.published import HostAddresses
from gpudiag.ranks.agents import messages
from gpudiag.ranks.agents.announce import Announcer
from gpudiag.ranks.agents.discovery import Address, Peers
from gpudiag.ranks.agents.link import Caller, Handshake, Link, LinkLostError, line_of
from gpudiag.ranks.agents.path_watch import HostAgent, Look, PathWatch
from gpudiag.ranks.agents.strays import Strays
from gpudiag.ranks.agents.tcp_counters import PeerSegments, plain_address
from gpudiag.ranks.clock import SAME_CLOCK, ClockComparison, ClockOffset
from gpudiag.ranks.diagnosis import evidence
from gpudiag.ranks.diagnosis.dump import RankDump
from gpudiag.ranks.diagnosis.loss import PathSegments
from gpudiag.ranks.diagnosis.paths import Paths
from gpudiag.ranks.diagnosis.split import Looker
from gpudiag.ranks.diagnosis.start_error import FailedStart
from gpudiag.ranks.diagnosis.view import Life, RankView
from gpudiag.ranks.diagnosis.watchdog import SILENT_SECONDS
from gpudiag.ranks.rank_run import RankEvent
from gpudiag.ranks.stages import IMPORT, INIT, RENDEZVOUS

# Agents report every tenth of a second; only gaps longer than this count as silence.
_SILENT_FLOOR_SECONDS = 0.5

# The host of a rank that has not connected from another machine.
UNKNOWN_HOST = "a host unknown here"

# How long the agents get to kill their ranks after the verdict; each needs two seconds at most.
_END_SECONDS = 3.0

# How long the verdict may take to reach all agents, over a network that the ranks have filled; and how long
# an agent may be silent meanwhile that is still waited for.
_VERDICT_SECONDS = 30.0
_VERDICT_SILENT_SECONDS = 3.0

# How long other agents get to ask their ranks for stacks, which takes them half a second at most.
_DUMP_SECONDS = 1.0

# How long the leader waits for agents before it reports to them that the run has failed.
_GATHER_SECONDS = 2.0

# How often the leader sends to its followers, and how often the next leaders get what it knows.
_SEND_SECONDS = 0.5
_MOST_RELAYS = 8
# All states are as many as there are ranks, so sending them to all ranks costs the square of that: the lowest
# ranks, which lead next, get them every time, and as many of the others in turn. With many ranks they are
# made less often.
_HEIRS = 16
_VIEWS_PER_SECOND = 500.0


@dataclass(slots=True)
class RemoteRecord:
    """One rank of another agent. Its view keeps the times of that agent's clock."""

    rank: int
    own_machine: Machine
    view: RankView
    location: messages.AgentLocation | None = None
    link: Link | None = None
    lost: bool = False
    silent_since: float | None = None  # since when it has been silent, having led
    ended: bool = False  # its agent has killed it after the verdict
    has_verdict: bool = False  # its agent has confirmed that it has the run's
    unkillable: tuple[int, ...] = ()
    settings: dict[str, str] = field(default_factory=dict)
    sent: tuple[PeerSegments, ...] = ()
    way: messages.WayLook | None = None  # None: its agent does not look, or has not confirmed it yet
    addresses: tuple[str, ...] = ()  # of its host, as the connection shows them
    dumps: tuple[RankDump, ...] | None = None  # None: not requested, or not answered yet
    host_addresses: HostAddresses | None = None  # None: not sent, or its kernel does not list them
    survey: messages.SurveyRow | None = None  # the last answer
    comparison: ClockComparison = field(default_factory=ClockComparison)
    held: list[RankEvent] = field(default_factory=list)  # events that came before its clock was known

    @property
    def offset(self) -> ClockOffset | None:
        """The offset of its clock from ours; None until it is known."""
        if self.location is None or self.location.machine.clock == self.own_machine.clock:
            return SAME_CLOCK
        return self.comparison.offset()

    @property
    def needs_clock(self) -> bool:
        """Whether its clock is not ours, and more exchanges are needed to know the offset well."""
        return self.offset is not SAME_CLOCK and not self.comparison.is_complete

    @property
    def pid_here(self) -> int | None:
        """The agent's pid, if it is valid on this machine; else None."""
        if self.location is None or self.location.machine.process_table != self.own_machine.process_table:
            return None
        return self.location.pid

    def current_view(self) -> RankView:
        """The rank's view for the watchdog; times are our CLOCK_MONOTONIC."""
        offset = self.offset or SAME_CLOCK
        view = self.view if offset is SAME_CLOCK else self.view.counted_from(offset.seconds)
        silent = self.link.silent_seconds if self.link is not None else 0.0
        if self.silent_since is not None:
            silent = time.monotonic() - self.silent_since
        if silent < _SILENT_FLOOR_SECONDS or self.ended:
            return view
        traces = view.traces
        if self.pid_here is not None:
            traces = (*traces, *evidence.of_agent_process(find_process(self.pid_here)))
        return replace(view, silent_seconds=silent, traces=traces)

    def update(self, state: messages.RankState) -> list[RankEvent]:
        """Keep the view; return the events in the message and those held so far, with times of our clock."""
        self.view = state.view
        self.held += state.events
        return self.release_events()

    def compare_clocks(self, answer: messages.ClockAnswer) -> list[RankEvent]:
        """Add a clock exchange; return the events that were held until the offset was known."""
        self.comparison.add(answer.asked_at, answer.answered_at, time.monotonic())
        return self.release_events()

    def release_events(self) -> list[RankEvent]:
        """The held events, with times of our clock; none while the offset is not known."""
        offset = self.offset
        if offset is None:
            return []
        events, self.held = self.held, []
        return [replace(event, at_seconds=event.at_seconds - offset.seconds) for event in events]

    def lose(self) -> None:
        """Note that the agent is gone, and so is its rank, which the kernel kills with it."""
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
            kill(self.pid_here)


def absent_records(ranks: Iterable[int], own_machine: Machine, host: str) -> dict[int, RemoteRecord]:
    """Records of ranks whose agents have not connected yet; `host` is where they are taken to be."""
    return {
        rank: RemoteRecord(
            rank,
            own_machine,
            RankView(rank=rank, local_rank=rank, host=host, life=Life.NOT_STARTED, agent_came=False),
        )
        for rank in ranks
    }


class RemoteRanks:
    """All ranks but this agent's own: accepts their agents' connections, keeps their reports, ends them."""

    def __init__(
        self,
        listeners: list[socket.socket],
        key: str,
        world_size: int,
        own_rank: int,
        own: messages.AgentLocation,
        host: str,
        path_watch: PathWatch | None = None,
        announcer: Announcer | None = None,
    ) -> None:
        """Wait on `listeners` for the agents of all ranks but `own_rank`, which know the run's `key`.

        `own` is where this agent is reached; `path_watch` looks at the network, the `announcer` for lost
        agents.
        """
        self._path_watch = path_watch
        self._own_addresses: set[str] = set()
        self.interrupted = False  # one of the agents was asked to give up
        self._start_failures: dict[int, FailedStart] = {}
        self._world_size = world_size
        self._own_host = socket.gethostname()
        self.strays = Strays(
            key, own_rank, world_size, announcer, self._hosts, self._addresses, lambda: self._is_under_way
        )
        self._handshake = Handshake(listeners, key)
        self._own_rank = own_rank
        self._own = own
        self._sent_at = 0.0
        self._received: list[RankEvent] = []
        self._relays: set[str] = set()  # hosts whose followers listen for agents that are not received here
        self._asked_at = 0.0
        self._turn = 0
        others = (rank for rank in range(world_size) if rank != own_rank)
        self._records = absent_records(others, own.machine, host)

    def remember(self, peers: Peers) -> None:
        """Start from what earlier leaders reported, and from which agents are gone."""
        for view in peers.views:
            if view.rank in self._records:
                self._records[view.rank].view = view
        for rank, location in peers.agents.items():
            if rank in self._records:
                self._records[rank].location = location
        for rank, silent_since in peers.leaders_silent.items():
            self._records[rank].silent_since = silent_since
        for rank in peers.leaders_lost | (peers.unreachable & peers.agents.keys()):
            self._records[rank].lose()

    def filenos(self) -> list[int]:
        """The descriptors to wait for."""
        return [*self._handshake.filenos(), *(link.fileno() for link in self._links())]

    def poll(self) -> list[RankEvent]:
        """Receive messages; return the events since the last call, with times of our clock."""
        self.receive()
        events, self._received = self._received, []
        return events

    def receive(self) -> None:
        """Receive messages, and keep the events in them for `poll`: for those that wait for a reply."""
        self._received += [event for caller in self._handshake.poll() for event in self._welcome(caller)]
        for record in self._records.values():
            if record.link is not None:
                self._received += self._receive(record, record.link)
        self.strays.poll()

    def views(self) -> tuple[RankView, ...]:
        """The view of every remote rank for the watchdog; times are our CLOCK_MONOTONIC."""
        return tuple(record.current_view() for record in self._records.values())

    def clock_offsets(self) -> Mapping[int, ClockOffset]:
        """The offset of each rank's clock from ours, if known."""
        return {rank: record.offset for rank, record in self._records.items() if record.offset is not None}

    def settings(self) -> dict[int, dict[str, str]]:
        """The settings that all ranks need alike, of each rank that has sent them."""
        return {rank: record.settings for rank, record in self._records.items() if record.settings}

    @property
    def is_gathering(self) -> bool:
        """Whether agents that an earlier leader knew have yet to connect to this one."""
        return any(
            record.location is not None
            and record.link is None
            and not record.lost
            and record.silent_since is None
            for record in self._records.values()
        )

    def sent_segments(
        self, own_host: str, own: tuple[PeerSegments, ...]
    ) -> dict[tuple[str, str], PathSegments]:
        """What ranks sent from each host to each other, by names; unknown addresses stay."""
        hosts = {address: own_host for address in self._own_addresses}
        for record in self._records.values():
            hosts.update(dict.fromkeys(record.addresses, record.view.host))
        paths: dict[tuple[str, str], PathSegments] = {}
        everyone = [(self._own_rank, own_host, own)]
        everyone += [(rank, record.view.host, record.sent) for rank, record in self._records.items()]
        for rank, sender, peers in sorted(everyone):
            for peer in peers:
                receiver = hosts.get(peer.address, peer.address)
                before = paths.get((sender, receiver), PathSegments(rank, sender, receiver, 0, 0))
                paths[sender, receiver] = replace(
                    before,
                    segments=before.segments + peer.segments,
                    retransmitted=before.retransmitted + peer.retransmitted,
                )
        return paths

    @property
    def spans_hosts(self) -> bool:
        """Whether other hosts may have ranks of this run."""
        return self._path_watch is not None

    @property
    def records(self) -> Mapping[int, RemoteRecord]:
        """What is known of each rank of other agents."""
        return self._records

    @property
    def own(self) -> messages.AgentLocation:
        """Where this agent is."""
        return self._own

    @property
    def own_rank(self) -> int:
        """The rank whose agent this is."""
        return self._own_rank

    @property
    def own_addresses(self) -> list[str]:
        """The addresses of this host to which other agents are connected."""
        return sorted(self._own_addresses)

    def look_at_paths(self, own_host: str) -> Paths | None:
        """What the hosts' agents find of each other now, within 8 s; None where no other host has one."""
        others = self._host_agents()
        return self._path_watch.look(others, own_host) if self._path_watch is not None and others else None

    def look_on_at_paths(self, own_host: str, *, urgent: bool) -> tuple[Look, ...] | None:
        """The last two looks at the network; None where no other host has an agent. Does not wait."""
        others = self._host_agents()
        if self._path_watch is None or not others:
            return None
        return self._path_watch.look_on(others, own_host, urgent=urgent)

    @property
    def is_looking(self) -> bool:
        """Whether a look at the network has not ended."""
        return self._path_watch is not None and self._path_watch.is_looking

    def forget_paths(self) -> None:
        """Start anew with the next look at the network."""
        if self._path_watch is not None:
            self._path_watch.forget()

    def _host_agents(self) -> list[HostAgent]:
        """The first agent of each other host, where it has connected."""
        first: dict[str, HostAgent] = {}
        for rank, record in sorted(self._records.items()):
            location = record.location
            if location is None or location.paths_address is None:
                continue
            if location.machine.network != self._own.machine.network:
                target = messages.PathTarget(rank, location.paths_address)
                first.setdefault(location.machine.network, HostAgent(target, record.view.host))
        return list(first.values())

    @property
    def unkillable(self) -> tuple[int, ...]:
        """Pids of ranks that their agents could not kill."""
        return tuple(pid for record in self._records.values() for pid in record.unkillable)

    @property
    def start_failures(self) -> tuple[FailedStart, ...]:
        """The ranks that their agents could not start."""
        return tuple(self._start_failures.values())

    def _ask_for_relays(self) -> None:
        """Let one follower of each of some hosts listen for agents that this one does not receive."""
        request = self.strays.wants_relays
        if request is None or len(self._relays) >= _MOST_RELAYS:
            return
        for record in self._records.values():
            host = record.view.host
            if record.link is not None and host not in (self._own_host, *self._relays):
                self._relays.add(host)
                record.link.send(request)

    def send_views(self, views: tuple[RankView, ...]) -> None:
        """Twice a second, ask the followers' clocks, and send the next leaders what is known."""
        self.strays.announce(
            any(view.life is Life.NOT_STARTED and view.rank != self._own_rank for view in views)
        )
        self._ask_for_relays()
        now = time.monotonic()
        due = now - self._asked_at >= _SEND_SECONDS
        question = line_of(messages.ClockQuestion(now))
        for record in self._records.values():
            if record.link is not None and (due or record.needs_clock):
                record.link.send_line(question)
        if due:
            self._asked_at = now
            for link in self.strays.links():
                link.send_line(question)  # which it leaves unanswered: it shows that this one runs
        if now - self._sent_at >= max(_SEND_SECONDS, self._world_size / _VIEWS_PER_SECOND):
            self._sent_at = now
            states = line_of(messages.AllStates(views, self._locations()))
            for link in self._next_receivers():
                link.send_line(states)
            heirs = line_of(messages.NextLeaders(self._locations()[:_HEIRS]))
            for link in self._links()[_HEIRS:]:
                link.send_line(heirs)

    def send(self, message: messages.Message) -> None:
        """Send one message to every agent that is connected."""
        line = line_of(message)
        for link in self._links():
            link.send_line(line, wait=True)

    def _next_receivers(self) -> list[Link]:
        """Those that get all states now: the agents that would lead next, and some of the others in turn."""
        links = self._links()
        heirs, others = links[:_HEIRS], links[_HEIRS:]
        some = [others[(self._turn + number) % len(others)] for number in range(min(_HEIRS, len(others)))]
        self._turn += _HEIRS
        return heirs + some

    def await_greetings(self) -> None:
        """Wait at most two seconds until every agent is connected, so that a message reaches all of them."""
        self._poll_while(lambda record: record.link is None, _GATHER_SECONDS)

    def collect_dumps(self) -> tuple[RankDump, ...]:
        """Other agents' answers to a DumpRequest that come within a second."""
        self._poll_while(lambda record: record.link is not None and record.dumps is None, _DUMP_SECONDS)
        return tuple(dump for record in self._records.values() for dump in record.dumps or ())

    def await_end(self) -> None:
        """Wait until every agent with an EndRequest has killed its rank; kill those that are silent."""
        self._poll_while(_is_ending, _END_SECONDS)
        for record in self._records.values():
            if not record.ended and not record.lost:
                record.kill_agent()

    def await_receipts(self, is_interrupted: Callable[[], bool]) -> None:
        """Wait until every agent that still sends has the verdict: a link closed sooner may lose it."""
        self._poll_while(lambda record: _lacks_verdict(record) and not is_interrupted(), _VERDICT_SECONDS)

    def release_links(self) -> list[Link]:
        """The open links, which the caller must close from now on."""
        links = self._links()
        for record in self._records.values():
            record.link = None
        self.strays.release()
        return links

    def close(self) -> None:
        """Close every link that is still open."""
        self._handshake.close()
        for link in self.release_links():
            link.close()

    def _links(self) -> list[Link]:
        """The links to the agents that are connected, strays last."""
        members = [record.link for record in self._records.values() if record.link is not None]
        return [*members, *self.strays.links()]

    def _locations(self) -> tuple[tuple[int, messages.AgentLocation], ...]:
        """The location of each agent that has connected, and this one's."""
        others = (
            (rank, record.location) for rank, record in self._records.items() if record.location is not None
        )
        return ((self._own_rank, self._own), *others)

    def _poll_while(self, condition: Callable[[RemoteRecord], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and any(map(condition, self._records.values())):
            time.sleep(0.01)
            self.receive()

    def _welcome(self, caller: Caller) -> list[RankEvent]:
        """Accept the agent for its rank; return the events that came with its greeting."""
        link, hello = caller.link, caller.hello
        if isinstance(hello, messages.Stray):
            self.strays.welcome(link, hello.card)
            return []
        if not isinstance(hello, messages.Hello):  # not an agent
            link.close()
            return []
        rank = hello.rank
        record = self._records.get(rank)
        if record is not None and record.link is not None and _is_same_process(record, hello):
            record.link.close()  # its connection was lost, and that has not been noticed here
            record.link = None
        if hello.world_size != self._world_size or record is None or record.link is not None:
            self.strays.welcome(link, self.strays.card_of(hello))
            return []
        record.link, record.lost = link, False
        record.view = replace(record.view, host=hello.host, agent_came=True)
        if link.peer_address is not None and link.own_address is not None:
            record.addresses = (plain_address(link.peer_address),)
            self._own_addresses.add(plain_address(link.own_address))
        record.location = replace(
            hello.location,
            address=self._address_of(link, hello.port),
            paths_address=self._address_of(link, hello.paths_port),
        )
        self._sent_at = 0.0  # let the others know at once
        return [event for message in caller.messages for event in self._read(record, message)]

    def _hosts(self) -> dict[int, str]:
        """The host of each rank whose agent is connected, and of this one."""
        linked = {rank: record.view.host for rank, record in self._records.items() if record.link is not None}
        return {self._own_rank: self._own_host, **linked}

    def _addresses(self) -> dict[str, str]:
        """The other hosts by their addresses, as their connections show them."""
        return {one: record.view.host for record in self._records.values() for one in record.addresses}

    @property
    def _is_under_way(self) -> bool:
        """Whether all ranks are here, and some have begun to measure: who comes now is of another run."""
        stages = (record.view.stage for record in self._records.values())
        complete = all(record.link is not None for record in self._records.values())
        return complete and any(stage not in (IMPORT, RENDEZVOUS, INIT) for stage in stages)

    def kept_away(self) -> tuple[Looker, ...]:
        """The ranks that another server keeps in the rendezvous, as far as can be seen."""
        return tuple(
            self.strays.looker(record.way.card, record.view.still_seconds, joined=False)
            for record in self._records.values()
            if record.way is not None and record.way.card is not None and record.view.stage == RENDEZVOUS
        )

    @property
    def looks_at_ways(self) -> bool:
        """Whether the agent of a rank in the rendezvous still looks for another server there."""
        return any(
            record.link is not None
            and record.way is not None
            and record.way.looking
            and record.view.stage == RENDEZVOUS
            for record in self._records.values()
        )

    def send_verdict(self, run: messages.FinishedRun) -> None:
        """Send all agents the run that they report; not those of other jobs, whose rank 0 may still come."""
        self.strays.leave_others()
        self.send(run)

    def _address_of(self, link: Link, port: int | None) -> Address | None:
        """Where other machines reach the agent at the other end, as far as the link shows it; else None."""
        machine = link.peer_address or (self._own.address and self._own.address[0])
        return None if port is None or machine is None else (machine, port)

    def _receive(self, record: RemoteRecord, link: Link) -> list[RankEvent]:
        try:
            received = link.receive()
        except LinkLostError:
            record.lose()
            return []
        return [event for message in received for event in self._read(record, message)]

    def _read(self, record: RemoteRecord, message: messages.Message) -> list[RankEvent]:
        match message:
            case messages.RankState():
                return record.update(message)
            case messages.ClockAnswer():
                return record.compare_clocks(message)
            case messages.RankSettings():
                record.settings = message.settings
            case messages.RelayedCard():
                self.strays.note_relayed(message.card, message.address)
            case messages.WayLook():
                record.way = message
            case messages.SentSegments():
                record.sent = message.peers
            case messages.OwnAddresses():
                record.host_addresses = message.addresses
            case messages.SurveyRow():
                record.survey = message
            case messages.Ended():
                record.ended, record.unkillable = True, message.unkillable
            case messages.Dumps():
                record.dumps = message.dumps
            case messages.VerdictReceived():
                record.has_verdict = True
            case messages.Interrupted():
                self.interrupted = True
            case messages.FailedLaunch():
                failed = FailedStart((record.rank,), message.host, message.failure, message.stderr)
                self._start_failures[record.rank] = failed
        return []


def _is_same_process(record: RemoteRecord, hello: messages.Hello) -> bool:
    """Whether the agent that greets is the one that is connected already."""
    known, new = record.location, hello.location
    return known is not None and (known.pid, known.machine) == (new.pid, new.machine)


def _is_ending(record: RemoteRecord) -> bool:
    """Whether its agent has yet to confirm that it killed the rank, and may still do so."""
    return record.link is not None and not record.ended and record.link.silent_seconds < SILENT_SECONDS


def _lacks_verdict(record: RemoteRecord) -> bool:
    """Whether its agent has yet to confirm that it has the verdict, and may still do so."""
    is_alive = record.link is not None and record.link.silent_seconds < _VERDICT_SILENT_SECONDS
    return is_alive and not record.has_verdict
