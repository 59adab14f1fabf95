"""The agents of one launch, one per rank: the lowest live rank's agent leads, the others follow it."""

import atexit
import os
import select
import time
from dataclasses import replace
from pathlib import Path

from gpudiag.errors import GpudiagError
from gpudiag.ranks.agent import Agent
from gpudiag.ranks.assignment import Assignment
from gpudiag.ranks.follow import LAUNCHER_PATIENCE_SECONDS, Follower, LeaderSilentError, Verdict
from gpudiag.ranks.ledger import Ledger
from gpudiag.ranks.link import Link, LinkLostError
from gpudiag.ranks.meeting import Meeting
from gpudiag.ranks.process import read_machine
from gpudiag.ranks.remote import RemoteRanks
from gpudiag.ranks.remote_record import UNKNOWN_HOST
from gpudiag.ranks.roster import AgentPlace, Roster
from gpudiag.ranks.run import RankRun, encode_run
from gpudiag.ranks.stages import RENDEZVOUS
from gpudiag.ranks.start_error import started_twice

# How long a follower that has nothing left to do waits for the leader to print the report and end.
_REPORT_SECONDS = 10.0

# An agent whose ranks cannot start looks for a leader to tell it to for so long.
_FAILED_START_SECONDS = 3.0

# How long an agent that has lost its leader tries to reach the next one: on other machines it may
# notice the loss a little later.
_NEXT_LEADER_SECONDS = 1.0

_RETRY_SECONDS = 0.02

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
