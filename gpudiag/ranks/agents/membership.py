"""The agents of one launch, one per rank: the lowest live rank's agent leads, the others follow it."""

import atexit
import os
import select
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpudiag.errors import GpudiagError
from gpudiag.model import codec
from gpudiag.ranks.agents.agent import Agent, Assignment
from gpudiag.ranks.agents.discovery import AgentPlace, Meeting, Roster
from gpudiag.ranks.agents.link import Link, LinkLostError
from gpudiag.ranks.agents.remote import UNKNOWN_HOST, RemoteRanks
from gpudiag.ranks.diagnosis.start_error import started_twice
from gpudiag.ranks.diagnosis.view import RankView
from gpudiag.ranks.event_log import Ledger
from gpudiag.ranks.process import read_machine
from gpudiag.ranks.run import RankRun, decode_run, encode_run
from gpudiag.ranks.stages import RENDEZVOUS

_TICK_SECONDS = 0.1
_LEADER_UNHEARD_SECONDS = 3.0  # the leader speaks twice a second

# A launcher that lost one process sends SIGTERM to the others; the leader needs this to say why.
LAUNCHER_PATIENCE_SECONDS = 5.0

# How long a follower that has nothing left to do waits for the leader to print the report and end.
_REPORT_SECONDS = 10.0

# An agent whose ranks cannot start looks for a leader to tell it to for so long.
_FAILED_START_SECONDS = 3.0

# How long an agent that has lost its leader tries to reach the next one: on other machines it may
# notice the loss a little later.
_NEXT_LEADER_SECONDS = 1.0
_RETRY_SECONDS = 0.02


class LeaderSilentError(Exception):
    """The leader's process is there, and does not do its work: stopped, or hung."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the leader said in the end: the run, or the exit status of an error that it reports."""

    run: RankRun | None = None
    exit_status: int | None = None
    interrupted: bool = False


class Follower:
    """Follows one leader until its verdict."""

    def __init__(self, link: Link, assignment: Assignment, ledger: Ledger, roster: Roster) -> None:
        """Report this agent's ranks over `link`; keep what the leader tells in `roster`."""
        self._link = link
        self._local = assignment.local
        self._interrupts = assignment.interrupts
        self._host = assignment.host
        self._ledger = ledger
        self._roster = roster
        self._verdict: Verdict | None = None

    def follow(self, rank: int, place: AgentPlace, port: int | None) -> Verdict:
        """The leader's verdict; `port` is where this agent listens for other machines.

        Raises:
            UsageError: there is another process with this rank in the run.
            LinkLostError: the leader is gone, and gave none.
            LeaderSilentError: it has said nothing for three seconds.
        """
        size = self._local.world_size
        self._link.send("hello", rank=rank, place=codec.encode(place), port=port, world_size=size)
        self._report([event for _, event in self._ledger.raw])  # a new leader knows nothing yet
        while self._verdict is None:
            self._wait()
            if self._interrupts.is_due(LAUNCHER_PATIENCE_SECONDS):
                self._link.send("interrupted")
                return Verdict(interrupted=True)
            for message in self._link.receive():  # first: what a clock says is worth most at once
                self._take(message)
            new = self._local.poll()
            self._ledger.take(new)
            self._report([event for _, event in new])
            if self._link.unheard_seconds > _LEADER_UNHEARD_SECONDS:
                raise LeaderSilentError
        return self._verdict

    def _wait(self) -> None:
        awaited = [*self._local.filenos(), self._link.fileno(), self._interrupts.fileno()]
        select.select(awaited, [], [], _TICK_SECONDS)

    def _report(self, events: list[dict[str, Any]]) -> None:
        failure = self._local.start_failure
        if failure is not None:
            stderr = self._local.stderr_tail()
            self._link.send("start_failure", failure=codec.encode(failure), stderr=stderr, host=self._host)
        (view,) = self._local.views(self._host)
        self._link.send("report", view=codec.encode(view), events=events)

    def _take(self, message: dict[str, Any]) -> None:
        kind = message["kind"]
        if kind == "views":
            self._roster.views = tuple(codec.decode(RankView, view) for view in message["views"])
            agents = message["agents"].items()
            self._roster.agents = {int(rank): codec.decode(AgentPlace, place) for rank, place in agents}
        elif kind == "clock":
            self._link.send("clock", asked_at=message["asked_at"], theirs=time.monotonic())
        elif kind == "refused":
            raise started_twice(message["rank"])
        elif kind == "dump":
            self._link.send("dump", dumps=codec.encode(self._local.dump()))
        elif kind == "end":
            self._link.send("ended", unkillable=list(self._local.end()))
        elif kind == "run":
            self._verdict = Verdict(run=decode_run(message["run"]))
        elif kind == "failed":
            self._verdict = Verdict(exit_status=message["exit_status"])
        elif kind == "interrupted":
            self._verdict = Verdict(interrupted=True)


# The lines of the last run. The leader keeps them open until its process ends; a follower's process
# does not end before: launchers kill everybody as soon as one process has failed, and the report
# must be out by then.
_lines_to_followers: list[Link] = []
_lines_to_leader: list[Link] = []


class Companions:
    """This process's agent among those of its launch, for one run."""

    def __init__(self, launcher: str, meeting: Meeting, directory: Path) -> None:
        """Make this agent findable, in its run directory.

        Raises:
            UsageError: there is another process with the same rank in this run.
        """
        if meeting.find_twin():
            raise started_twice(meeting.rank)
        _forget_lines()
        self._launcher = launcher
        self._meeting = meeting
        self._listeners = meeting.listen(directory)
        self._place = AgentPlace(os.getpid(), read_machine())
        self._roster = Roster()

    def run(self, assignment: Assignment) -> RankRun | None:
        """The run that all agents agreed on, its ranks ended; None if it is given up.

        Raises:
            UsageError: the interpreter cannot run ranks, or a rank was started twice.
            RankStartError: the ranks could not be started.
            SystemExit: the leader reports such an error; its exit status is this process's too.
        """
        own = Ledger(assignment.started)
        while True:
            found = self._find_leader(assignment, own)
            if assignment.interrupts.is_due():
                return None
            if found is None:
                ledger = Ledger(assignment.started, assignment.on_event)
                ledger.take(own.raw)
                return self._lead(assignment, ledger)
            leader, link = found
            follower = Follower(link, assignment, own, self._roster)
            try:
                verdict = follower.follow(self._meeting.rank, self._place, self._meeting.port)
            except LinkLostError:
                link.close()
                self._roster.leaders_lost.add(leader)
            except LeaderSilentError:
                link.close()
                self._roster.leaders_silent[leader] = time.monotonic() - link.unheard_seconds
            else:
                return _obey(verdict, link)

    def close(self) -> None:
        """Stop being findable."""
        for listener in self._listeners:
            listener.close()

    def _find_leader(self, assignment: Assignment, own: Ledger) -> tuple[int, Link] | None:
        """The lowest live rank and a line to its agent; None if that is this one, or the run is given up.

        At the start the lowest rank may not be up yet, and is waited for; once there was a leader,
        everybody is up who ever will be, and needs a moment at most to notice that it leads now.
        """
        first_meeting = assignment.budgets.seconds_for(RENDEZVOUS)
        patience = _Patience(_NEXT_LEADER_SECONDS if self._roster.met else first_meeting)
        for rank in range(self._meeting.rank):
            if rank not in self._roster.gone:
                link = self._await_agent(rank, assignment, own, patience)
                if link is not None:
                    return rank, link
                self._roster.unreachable.add(rank)
        return None

    def _await_agent(
        self, rank: int, assignment: Assignment, own: Ledger, patience: "_Patience"
    ) -> Link | None:
        """A line to the agent of that rank; None if it does not come in time, or the run is given up."""
        local = assignment.local
        siblings = assignment.siblings
        while not assignment.interrupts.is_due(LAUNCHER_PATIENCE_SECONDS):
            own.take(local.poll())
            if siblings is not None and assignment.interrupts.received and rank in siblings.gone():
                return None  # that is why the launcher ends the run
            if local.start_failure is not None:
                patience.shorten(_FAILED_START_SECONDS)
            link = self._meeting.connect(rank, self._roster.addresses)
            if link is not None or patience.over:
                return link
            time.sleep(_RETRY_SECONDS)
        return None

    def _lead(self, assignment: Assignment, ledger: Ledger) -> RankRun | None:
        meeting = self._meeting
        own = replace(self._place, address=meeting.own_address or self._roster.addresses.get(meeting.rank))
        world_size = assignment.job.world_size
        # All ranks are here where nobody has to be reached elsewhere; else nobody knows yet where one is.
        elsewhere = UNKNOWN_HOST if meeting.spans_machines else assignment.host
        remote = RemoteRanks(self._listeners, meeting.key, world_size, meeting.rank, own, elsewhere)
        remote.remember(self._roster)
        agent = Agent(assignment, remote, ledger)
        try:
            if not agent.watch():
                remote.send("interrupted")
                return None
            remote.send("end")
            unkillable = assignment.local.end()
            remote.await_end()
            run = agent.build_run(self._launcher, (*unkillable, *remote.unkillable))
            remote.send("run", run=encode_run(run))
            _lines_to_followers.extend(remote.release_links())
        except GpudiagError as error:
            remote.await_greetings()
            remote.send("failed", exit_status=int(error.exit_status))
            raise
        finally:
            remote.close()
        return run


class _Patience:
    """How long other agents are waited for, all of them together."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds

    @property
    def over(self) -> bool:
        """Whether nobody is waited for any more."""
        return time.monotonic() >= self._until

    def shorten(self, seconds: float) -> None:
        """Wait no longer than so many seconds from now."""
        self._until = min(self._until, time.monotonic() + seconds)


def _obey(verdict: Verdict, link: Link) -> RankRun | None:
    """What a follower's caller gets; whatever it is, the process does not end before the leader's."""
    _lines_to_leader.append(link)
    if verdict.exit_status is not None:
        raise SystemExit(verdict.exit_status)
    return verdict.run


def _forget_lines() -> None:
    for link in (*_lines_to_followers, *_lines_to_leader):
        link.close()
    _lines_to_followers.clear()
    _lines_to_leader.clear()


@atexit.register
def _await_leader() -> None:
    """Wait, at the end of a follower's process, until the leader's has ended."""
    deadline = time.monotonic() + _REPORT_SECONDS
    for link in _lines_to_leader:
        while (remaining := deadline - time.monotonic()) > 0:
            select.select([link.fileno()], [], [], remaining)
            try:
                link.receive()
            except LinkLostError:
                break
