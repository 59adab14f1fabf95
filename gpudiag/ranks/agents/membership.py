"""The agents of one launch, one per rank: the lowest live rank's agent leads, the others follow it."""

import atexit
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpudiag.errors import ExitStatus, GpudiagError
from gpudiag.linux.namespaces import read_machine
from gpudiag.model.measure import IncidentKind
from gpudiag.model.published import HostAddresses
from gpudiag.ranks.agents import messages
from gpudiag.ranks.agents.addresses import read_host_addresses
from gpudiag.ranks.agents.agent import Agent, Assignment
from gpudiag.ranks.agents.announce import Announcer, ReceivedCard
from gpudiag.ranks.agents.astray import Astray
from gpudiag.ranks.agents.discovery import Address, Discovery, Peers
from gpudiag.ranks.agents.host_surveys import HostSurveys
from gpudiag.ranks.agents.link import Link, LinkLostError, wait_readable
from gpudiag.ranks.agents.meeting_faults import MeetingFaults, meeting_point
from gpudiag.ranks.agents.path_watch import PathWatch
from gpudiag.ranks.agents.reach import MeetingWatch, Reach, explain_absence
from gpudiag.ranks.agents.remote import UNKNOWN_HOST, RemoteRanks
from gpudiag.ranks.agents.store_notes import StoreNotes, StoreWatch
from gpudiag.ranks.diagnosis.outage import CUT_SECONDS
from gpudiag.ranks.diagnosis.paths import EXCUSED_SECONDS, UNANSWERED, Contact
from gpudiag.ranks.diagnosis.start_error import started_twice, verdict_lost
from gpudiag.ranks.event_log import EventLog
from gpudiag.ranks.rank_run import RankEvent, RankRun
from gpudiag.ranks.stages import IMPORT, RENDEZVOUS

_TICK_SECONDS = 0.1
_REPORTS_PER_SECOND = 2500.0
_LEADER_SILENT_SECONDS = 3.0  # the leader sends twice a second
# Once it has judged the run, it waits for all agents to have ended their ranks, and for those that its
# network delays.
_VERDICT_SECONDS = 40.0
_ASK_LEADER_SECONDS = 1.0  # how often a leader that is silent is asked whether it runs

# A launcher that lost one process sends SIGTERM to the others; the leader needs this long to find out why.
LAUNCHER_PATIENCE_SECONDS = 5.0

# How long a finished follower waits for the leader to print the report and end.
_REPORT_SECONDS = 10.0

# How long an agent whose ranks cannot start looks for a leader to report that to.
_FAILED_START_SECONDS = 3.0

# How long an agent that has lost its leader tries to reach the next one: on other machines it may
# notice the loss a little later.
_NEXT_LEADER_SECONDS = 1.0
# A leader that goes silent is not missed by all at the same moment: each first asks whether it still runs.
_AFTER_SILENCE_SECONDS = 3.0
_RETRY_SECONDS = 0.02


class LeaderSilentError(Exception):
    """The leader's process exists but does not respond: stopped, or hung."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The leader's last word: the run, or the exit status of an error that the leader reports."""

    run: RankRun | None = None
    exit_status: int | None = None
    interrupted: bool = False


def report_seconds(world_size: int) -> float:
    """Seconds between a follower's reports: the leader takes a few thousand a second from all ranks."""
    return max(_TICK_SECONDS, world_size / _REPORTS_PER_SECOND)


class Follower:
    """Follows one leader until its verdict."""

    def __init__(
        self, link: Link, assignment: Assignment, log: EventLog, peers: Peers, paths: PathWatch | None
    ) -> None:
        """Report this agent's ranks over `link`; keep the leader's messages in `peers`.

        Ask it over `paths`.
        """
        self._link = link
        self.announcer: Announcer | None = None  # by which it relays what others announce
        self._is_relay = False
        self._relayed: dict[tuple[int, str], float] = {}
        self.notes: list[messages.WayLook] = []  # what the leader is to get of what was found on the way
        self.addresses: HostAddresses | None = None  # of this host, for the leader
        self._paths = paths
        self._tcp = assignment.tcp
        self._asked_at = 0.0
        self._unanswered_since: float | None = None
        self._local = assignment.local
        self._interrupts = assignment.interrupts
        self._host = assignment.host
        self._log = log
        self._peers = peers
        self._verdict: Verdict | None = None
        self._judged = False  # the leader has judged the run, and its verdict is on the way
        self._started = assignment.started
        self._import_seconds = assignment.budgets.seconds_for(IMPORT)
        self._sent_settings = False
        self._reported_at = 0.0
        # A little less than a round: rounds are not exact.
        self._report_seconds = 0.9 * report_seconds(self._local.world_size)

    def follow(self, rank: int, location: messages.AgentLocation, port: int | None, leader: int) -> Verdict:
        """Follow rank `leader`'s agent, and return its verdict.

        `port` is where this one listens for other machines.

        Raises:
            UsageError: another process in the run has the same rank.
            LinkLostError: the leader is gone, and had not judged the run.
            LaunchError: the leader is gone; it had judged the run, and its verdict did not arrive.
            LeaderSilentError: the leader has sent nothing for three seconds, and does not reply either.
        """
        size = self._local.world_size
        paths_port = None if self._paths is None else self._paths.port
        self._link.send(messages.Hello(rank, location, port, paths_port, self._host, size))
        if self.addresses is not None:
            self._link.send(messages.OwnAddresses(self.addresses))
        self._report(self._log.collected)  # a new leader knows nothing yet
        while self._verdict is None:
            self._wait()
            if self._interrupts.is_due(LAUNCHER_PATIENCE_SECONDS):
                self._link.send(messages.Interrupted())
                return Verdict(interrupted=True)
            for message in self._receive():  # first: clock questions must be answered at once
                self._unanswered_since = None
                self._answer(message)
            self._relay()
            while self.notes:
                self._link.send(self.notes.pop(0))
            new = self._local.poll()
            self._log.add(new)
            self._local.limit_start(time.monotonic() - self._started, self._import_seconds)
            if new or time.monotonic() - self._reported_at >= self._report_seconds:
                self._report(new)
            for row in () if self._paths is None else self._paths.surveyor.take():
                self._link.send(row)
            if self._tcp.sample(self._local.live_pids()):
                self._link.send(messages.SentSegments(self._tcp.totals()))
            if self._judged:
                if self._link.silent_seconds > _VERDICT_SECONDS:
                    raise verdict_lost()
            elif self._link.silent_seconds > _LEADER_SILENT_SECONDS and not self._replies(leader):
                raise LeaderSilentError
        self._link.send(messages.VerdictReceived())
        return self._verdict

    @property
    def relays(self) -> bool:
        """Whether cards came from agents that the leader may not receive."""
        return bool(self._relayed)

    def _relay(self) -> None:
        """Send the leader what agents of its run have announced since the last time."""
        if not self._is_relay or self.announcer is None:
            return
        for received in self.announcer.received_cards():
            card, place = received.card, (received.card.rank, received.card.host)
            is_new = self._relayed.get(place) != received.at
            if is_new and not card.leads and card.key == self.announcer.card.key:
                self._relayed[place] = received.at
                self._link.send(messages.RelayedCard(card, received.address))

    def _receive(self) -> list[messages.Message]:
        try:
            return self._link.receive()
        except LinkLostError:
            if self._judged:
                raise verdict_lost() from None
            raise

    def _replies(self, leader: int) -> bool:
        """Whether the silent leader's process runs: it may be starved, or look at the network itself."""
        location = self._peers.agents.get(leader)
        if self._paths is None or location is None or location.paths_address is None:
            return False
        if self._link.silent_seconds > _LEADER_SILENT_SECONDS + EXCUSED_SECONDS:
            return False
        if time.monotonic() - self._asked_at < _ASK_LEADER_SECONDS:
            return True
        contact = self._paths.contact(location.paths_address)
        self._asked_at = time.monotonic()
        if contact in UNANSWERED:  # the network may come back, and TCP with it
            # By the clock: the link does not count the time in which this agent asked.
            if self._unanswered_since is None:
                self._unanswered_since = self._asked_at - self._link.silent_seconds
            return self._asked_at - self._unanswered_since <= CUT_SECONDS
        return contact is Contact.REPLIES

    def _wait(self) -> None:
        awaited = (*self._local.filenos(), self._link.fileno(), self._interrupts.fileno())
        wait_readable(awaited, _TICK_SECONDS)

    def _report(self, events: Sequence[RankEvent]) -> None:
        failure = self._local.start_failure
        if failure is not None:
            stderr = self._local.stderr_tail()
            self._link.send(messages.FailedLaunch(failure, stderr, self._host))
        if self._local.settings and not self._sent_settings:
            self._sent_settings = True
            self._link.send(messages.RankSettings(self._local.settings))
        self._reported_at = time.monotonic()
        (view,) = self._local.views(self._host)
        self._link.send(messages.RankState(view, tuple(events)))

    def _answer(self, message: messages.Message) -> None:
        match message:
            case messages.AllStates():
                self._peers.views = message.views
                self._peers.agents = dict(message.agents)
            case messages.NextLeaders():
                self._peers.agents.update(message.agents)
            case messages.ClockQuestion():
                self._link.send(messages.ClockAnswer(message.asked_at, time.monotonic()))
            case messages.RefusedRank():
                raise started_twice(message.rank, message.why)
            case messages.RelayRequest():
                if self.announcer is not None:
                    self._is_relay = True
                    self.announcer.relay(message.card)
            case messages.SurveyRequest():
                if self._paths is not None:
                    self._paths.surveyor.start(message)
            case messages.DumpRequest():
                self._link.send(messages.Dumps(tuple(self._local.dump())))
            case messages.EndRequest():
                self._judged = True
                self._link.send(messages.Ended(tuple(self._local.end())))
            case messages.FinishedRun():
                self._verdict = Verdict(run=replace(message.run, reporter=False))
            case messages.FailedRun():
                self._verdict = Verdict(exit_status=message.exit_status)
            case messages.Interrupted():
                self._verdict = Verdict(interrupted=True)


# The links of the last run. The leader keeps them open until its process ends, and a follower's process
# does not end before that: launchers kill all processes as soon as one has failed, and the report must
# be out by then.
_lines_to_followers: list[Link] = []
_lines_to_leader: list[Link] = []

# Where the network was cut, the hosts behind the cut notice it by themselves, and ask those that they still
# reach what these reach: so long after the verdict, their answers are still there.
_ANSWER_SECONDS = 12.0
_answering: list[tuple[PathWatch, float]] = []
_CUTS = (IncidentKind.CUT_OFF, IncidentKind.PARTED)


class Membership:
    """This process's agent among those of its launch, for one run: it follows, or leads."""

    def __init__(
        self,
        launcher: str,
        discovery: Discovery,
        directory: Path,
        watch: MeetingWatch | None = None,
        announcer: Announcer | None = None,
    ) -> None:
        """Make this agent findable, in its run directory; `watch` is for rank 0 on another machine.

        The `announcer` finds agents of the job that do not meet it where it should be.

        Raises:
            UsageError: another process in this run has the same rank.
        """
        if discovery.find_twin():
            raise started_twice(discovery.rank)
        _forget_lines()
        self._launcher = launcher
        self._discovery = discovery
        self._watch = watch
        self._listeners = discovery.listen(directory)
        self._paths = PathWatch(discovery.key, discovery.rank) if discovery.spans_machines else None
        self._addresses = read_host_addresses() if discovery.spans_machines else None
        self._location = messages.AgentLocation(os.getpid(), read_machine())
        self._peers = Peers()
        self._is_kept_out = False  # for sure from rank 0's machine, so that nobody there need be waited for
        self._announcer = announcer
        self._astray: Astray | None = None
        self._last_word: messages.Message | None = None
        self._twin: ReceivedCard | None = None
        if announcer is not None:
            announcer.introduce(replace(announcer.card, port=discovery.port))
            self._astray = Astray(announcer, discovery, watch)

    def run(self, assignment: Assignment) -> RankRun | None:
        """The run that all agents agreed on, after its ranks have ended; None if it is given up.

        Raises:
            UsageError: the interpreter cannot run ranks, or a rank was started twice.
            RankStartError: the ranks could not be started.
            SystemExit: the leader reports such an error; this process ends with the same exit status.
        """
        own = EventLog(assignment.started)
        while True:
            found = self._find_leader(assignment, own)
            if self._watch is not None:
                self._watch.stop()
            if assignment.interrupts.is_due():
                return None
            if self._last_word is not None:
                return self._obey_word(self._last_word)
            if self._astray is not None:
                self._astray.found_rank_0()
            if found is None:
                log = EventLog(assignment.started, assignment.on_event)
                log.add(own.collected)
                run = self._lead(assignment, log)
                return run if self._twin is None else self._follow_twin(self._twin, assignment)
            leader, link = found
            follower = Follower(link, assignment, own, self._peers, self._paths)
            follower.addresses, follower.announcer = self._addresses, self._announcer
            self._look_on(follower)
            try:
                verdict = follower.follow(self._discovery.rank, self._location, self._discovery.port, leader)
            except LinkLostError:
                link.close()
                self._peers.leaders_lost.add(leader)
            except LeaderSilentError:
                link.close()
                self._peers.leaders_silent[leader] = time.monotonic() - link.silent_seconds
            else:
                self._keep_answering(verdict.run)
                if follower.relays and self._announcer is not None and verdict.run is not None:
                    self._announcer.announce_end(int(_exit_status(verdict.run)))
                return _obey(verdict, link)

    def close(self) -> None:
        """Stop being findable."""
        for listener in self._listeners:
            listener.close()
        if self._paths is not None:
            self._paths.close()
        if self._astray is not None:
            self._astray.close()
        if self._announcer is not None:
            self._announcer.close()

    def _keep_answering(self, run: RankRun | None) -> None:
        """Where the network is cut, answer those behind the cut for a while longer."""
        if self._paths is not None and run is not None and any(one.kind in _CUTS for one in run.incidents):
            _answering.append((self._paths, time.monotonic() + _ANSWER_SECONDS))
            self._paths = None

    def _find_leader(self, assignment: Assignment, own: EventLog) -> tuple[int, Link] | None:
        """The lowest live rank and a link to its agent; None if that is this one, or the run is given up.

        At the start the lowest rank is waited for; later the next one soon notices that it leads.
        """
        first_contact = assignment.budgets.seconds_for(RENDEZVOUS)
        if self._watch is not None and not self._peers.met:
            self._watch.start()
        if self._astray is not None and not self._peers.met and self._discovery.rank > 0:
            self._astray.start()
        again = _AFTER_SILENCE_SECONDS if self._peers.leaders_silent else _NEXT_LEADER_SECONDS
        patience = _Patience(again if self._peers.met else first_contact)
        for rank in range(self._discovery.rank):
            if rank not in self._peers.gone:
                if rank > 0 and patience.over and rank in self._others_addresses():
                    patience = _Patience(_NEXT_LEADER_SECONDS)  # it gives rank 0 up at about the same time
                link = self._await_agent(rank, assignment, own, patience)
                if link is not None:
                    return rank, link
                if self._last_word is not None:
                    return None
                self._peers.unreachable.add(rank)
        return None

    def _await_agent(
        self, rank: int, assignment: Assignment, own: EventLog, patience: "_Patience"
    ) -> Link | None:
        """A link to that rank's agent; None if it does not come up in time, or the run is given up."""
        local = assignment.local
        siblings = assignment.siblings
        while not assignment.interrupts.is_due(LAUNCHER_PATIENCE_SECONDS):
            own.add(local.poll())
            if siblings is not None and assignment.interrupts.received and rank in siblings.gone():
                return None  # its death is why the launcher ends the run
            if local.start_failure is not None:
                patience.shorten(_FAILED_START_SECONDS)
            is_shut_out = self._watch is not None and self._watch.shut_out is not None
            if is_shut_out and not self._peers.met and not self._may_be_reported():
                return None
            link = self._discovery.connect(rank, {**self._others_addresses(), **self._peers.addresses})
            if link is not None or patience.over:
                return link
            if self._astray is not None and not self._peers.met:
                leader = self._astray.leader()
                if leader is not None and leader > rank:
                    return None  # others of this run have given that rank up
                self._last_word = self._astray.poll()
                if self._last_word is not None:
                    return None
            is_certain = self._watch is not None and self._watch.certain is not None
            if is_certain and not self._peers.met and not self._may_be_reported():
                self._is_kept_out = True
                patience.shorten(0.0)
            time.sleep(_RETRY_SECONDS)
        return None

    def _look_on(self, follower: Follower) -> None:
        """Let the leader know of another server that the ranks meet before rank 0."""
        watch, announcer = self._watch, self._announcer
        if watch is None or announcer is None or self._peers.met:
            return

        def send_reach(found: Reach | None) -> None:
            card = None
            if found is not None:
                card = replace(announcer.card, obstacle=found.obstacle.value, found=found.words)
            follower.notes.append(messages.WayLook(looking=False, card=card))

        follower.notes.append(messages.WayLook(looking=True))
        watch.look_on(send_reach)

    def _may_be_reported(self) -> bool:
        """Whether a leader of others of this job may still report that this one does not reach rank 0."""
        return self._astray is not None and self._astray.may_be_reported

    def _others_addresses(self) -> dict[int, Address]:
        """Where agents that have not met this one listen, as they announce it."""
        return {} if self._astray is None else self._astray.addresses()

    def _follow_twin(self, leader: ReceivedCard, assignment: Assignment) -> RankRun | None:
        """The verdict of the same rank's agent where all look. Raises UsageError: it refuses, or is gone."""
        if self._astray is None or not self._astray.join(leader):
            raise started_twice(self._discovery.rank)
        while not assignment.interrupts.is_due(LAUNCHER_PATIENCE_SECONDS) and self._astray.is_joined:
            assignment.local.poll()
            word = self._astray.poll()
            if word is not None:
                return self._obey_word(word)
            time.sleep(_RETRY_SECONDS)
        raise started_twice(self._discovery.rank)

    def _obey_word(self, word: messages.Message) -> RankRun | None:
        """The run as the leader of others of this job reports it; None where that one was interrupted.

        Raises:
            UsageError: that leader refuses this process.
            SystemExit: that leader ended with an error.
        """
        if isinstance(word, messages.RefusedRank):
            raise started_twice(word.rank, word.why)
        link = None if self._astray is None else self._astray.release()
        if link is not None:
            _lines_to_leader.append(link)
        if isinstance(word, messages.FailedRun):
            raise SystemExit(word.exit_status)
        return replace(word.run, reporter=False) if isinstance(word, messages.FinishedRun) else None

    def _lead(self, assignment: Assignment, log: EventLog) -> RankRun | None:
        discovery = self._discovery
        address = discovery.own_address or self._peers.addresses.get(discovery.rank)
        paths_address = None if address is None or self._paths is None else (address[0], self._paths.port)
        own = replace(self._location, address=address, paths_address=paths_address)
        world_size = assignment.job.world_size
        # Unless the run may span machines, all ranks are here; if it may, a rank's host is not known yet.
        elsewhere = UNKNOWN_HOST if discovery.spans_machines else assignment.host
        remote = RemoteRanks(
            self._listeners,
            discovery.key,
            world_size,
            discovery.rank,
            own,
            elsewhere,
            self._paths,
            self._announcer,
        )
        if self._announcer is not None:
            self._announcer.introduce(replace(self._announcer.card, leads=True))
        remote.remember(self._peers)
        if self._watch is not None and not self._peers.met:
            assignment = replace(assignment, notice=None)  # the watch has printed what it waits for
        agent = Agent(assignment, remote, log)
        if self._is_kept_out and not self._peers.met:
            agent.expect_nobody()
        agent.meeting_faults = self._look_at_meeting(remote, assignment)
        try:
            if not agent.watch():
                self._twin = remote.strays.yields_to
                if self._twin is None:
                    remote.send(messages.Interrupted())
                return None
            remote.send(messages.EndRequest())
            unkillable = assignment.local.end()
            remote.await_end()
            run = agent.build_run(self._launcher, (*unkillable, *remote.unkillable))
            if self._watch is not None and 0 in self._peers.unreachable and not self._peers.met:
                reach = self._watch.conclude()
                explained = explain_absence(run.incidents, reach, discovery.rank, assignment.host)
                run = replace(run, incidents=explained)
            self._keep_answering(run)
            remote.send_verdict(messages.FinishedRun(run))
            remote.strays.announce_end(int(_exit_status(run)))
            remote.await_receipts(assignment.interrupts.is_due)
            _lines_to_followers.extend(remote.release_links())
        except GpudiagError as error:
            remote.await_greetings()
            remote.send(messages.FailedRun(int(error.exit_status)))
            remote.await_receipts(assignment.interrupts.is_due)
            raise
        finally:
            remote.close()
            if agent.meeting_faults is not None:
                agent.meeting_faults.close()
        return run

    def _look_at_meeting(self, remote: RemoteRanks, assignment: Assignment) -> MeetingFaults | None:
        """What finds out why ranks that all came do not meet; None where all are on this machine."""
        if self._addresses is None or self._paths is None:
            return None
        job, discovery = assignment.job, self._discovery
        point, backend = meeting_point(job.init_method), str(job.arguments.get("backend", ""))
        store = None
        if point is not None and discovery.rank == 0:
            notes = StoreNotes(point, discovery.key)
            store = StoreWatch(notes, assignment.host, range(1, job.world_size))
        surveys = HostSurveys(remote, self._paths, self._addresses, assignment.host, point)
        found = MeetingFaults(surveys, point, backend, store)
        found.agent_port = discovery.port or 0
        if self._watch is not None and not self._peers.met:
            found.shut_out = self._watch.shut_out
        return found


class _Patience:
    """The deadline for waiting for other agents, all of them together."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds

    @property
    def over(self) -> bool:
        """Whether the deadline has passed."""
        return time.monotonic() >= self._until

    def shorten(self, seconds: float) -> None:
        """Move the deadline to at most `seconds` from now."""
        self._until = min(self._until, time.monotonic() + seconds)


def _obey(verdict: Verdict, link: Link) -> RankRun | None:
    """The run for the follower's caller, once the leader's process ended. Raises SystemExit: by an error."""
    _lines_to_leader.append(link)
    if verdict.exit_status is not None:
        raise SystemExit(verdict.exit_status)
    return verdict.run


# What keeps ranks from being tested; what else ends a run early is a failure.
_UNTESTED = (IncidentKind.NOT_STARTED, IncidentKind.UNREACHED, IncidentKind.SPLIT, IncidentKind.START_FAILED)


def _exit_status(run: RankRun) -> ExitStatus:
    """How all processes of a run end that has not begun to measure."""
    untested = all(one.kind in _UNTESTED for one in run.incidents)
    return ExitStatus.ERROR if untested else ExitStatus.FAIL


def _forget_lines() -> None:
    for link in (*_lines_to_followers, *_lines_to_leader):
        link.close()
    _lines_to_followers.clear()
    _lines_to_leader.clear()


@atexit.register
def _await_leader() -> None:
    """At the end of a follower's process, wait until the leader's has ended."""
    deadline = time.monotonic() + _REPORT_SECONDS
    for link in _lines_to_leader:
        while (remaining := deadline - time.monotonic()) > 0:
            wait_readable((link.fileno(),), remaining)
            try:
                link.receive()
            except LinkLostError:
                break


@atexit.register
def _await_questions() -> None:
    """At the end of a process that saw the network cut, answer those behind the cut until they have asked."""
    for paths, until in _answering:
        time.sleep(max(0.0, until - time.monotonic()))
        paths.close()
