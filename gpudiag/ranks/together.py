"""The agents of one launch, one per rank: the lowest live rank's agent leads, the others follow it."""

import atexit
import os
import select
import time
from collections.abc import Callable
from pathlib import Path

from gpudiag.errors import GpudiagError, UsageError
from gpudiag.ranks.agent import Agent
from gpudiag.ranks.environment import RankEnvironment
from gpudiag.ranks.follow import LAUNCHER_PATIENCE_SECONDS, Follower, LeaderSilentError, Verdict
from gpudiag.ranks.interrupts import Interrupts
from gpudiag.ranks.job import Job
from gpudiag.ranks.ledger import Ledger
from gpudiag.ranks.link import Link, LinkLostError, Meeting
from gpudiag.ranks.local import LocalRanks
from gpudiag.ranks.remote import RemoteRanks
from gpudiag.ranks.roster import Roster
from gpudiag.ranks.run import RankEvent, RankRun, encode_run
from gpudiag.ranks.stages import RENDEZVOUS, Budgets

# How long a follower that has nothing left to do waits for the leader to print the report and end.
_REPORT_SECONDS = 10.0

# An agent whose ranks cannot start looks for a leader to tell it to for so long.
_FAILED_START_SECONDS = 3.0

# The lines of the last run. The leader keeps them open until its process ends; a follower's process
# does not end before: launchers kill everybody as soon as one process has failed, and the report
# must be out by then.
_lines_to_followers: list[Link] = []
_lines_to_leader: list[Link] = []


class Companions:
    """This process's agent among those of its launch, for one run."""

    def __init__(self, environment: RankEnvironment, meeting: Meeting, directory: Path, host: str) -> None:
        """Make this agent findable.

        Raises:
            UsageError: there is another process with the same rank in this run.
        """
        if (twin := meeting.connect(meeting.rank)) is not None:
            twin.close()
            raise UsageError(
                f"rank {meeting.rank} was started twice in this run",
                hint="give every process its own RANK, or let the launcher do so",
            )
        _forget_lines()
        self._environment = environment
        self._meeting = meeting
        self._listener = meeting.listen(directory)
        self._host = host
        self._roster = Roster()
        self._started = time.monotonic()

    def run(
        self,
        local: LocalRanks,
        job: Job,
        budgets: Budgets,
        interrupts: Interrupts,
        on_event: Callable[[RankEvent], None] | None,
    ) -> RankRun | None:
        """The run that all agents agreed on, its ranks ended; None if it is given up.

        Raises:
            UsageError: the interpreter cannot run ranks.
            RankStartError: the ranks could not be started.
            SystemExit: the leader reports such an error; its exit status is this process's too.
        """
        own = Ledger(self._started)
        while True:
            found = self._find_leader(local, own, budgets, interrupts)
            if interrupts.is_due():
                return None
            if found is None:
                ledger = Ledger(self._started, on_event)
                ledger.take(own.raw)
                return self._lead(local, job, budgets, interrupts, ledger)
            leader, link = found
            follower = Follower(link, local, own, self._roster, self._host)
            try:
                verdict = follower.follow(self._meeting.rank, os.getpid(), interrupts)
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
        self._listener.close()

    def _find_leader(
        self, local: LocalRanks, own: Ledger, budgets: Budgets, interrupts: Interrupts
    ) -> tuple[int, Link] | None:
        """The lowest live rank and a line to its agent; None if that is this one, or the run is given up.

        At the start the lowest rank may not be up yet, and is waited for; once there was a leader,
        everybody is up who ever will be.
        """
        patience = 0.0 if self._roster.met else budgets.seconds_for(RENDEZVOUS)
        deadline = time.monotonic() + patience
        rank = 0
        while rank != self._meeting.rank and not interrupts.is_due(LAUNCHER_PATIENCE_SECONDS):
            own.take(local.poll())
            if local.start_failure is not None:
                deadline = min(deadline, time.monotonic() + _FAILED_START_SECONDS)
            if rank not in self._roster.gone:
                link = self._meeting.connect(rank)
                if link is not None:
                    return rank, link
                if time.monotonic() < deadline:
                    time.sleep(0.02)
                    continue
                self._roster.unreachable.add(rank)
            rank += 1
        return None

    def _lead(
        self, local: LocalRanks, job: Job, budgets: Budgets, interrupts: Interrupts, ledger: Ledger
    ) -> RankRun | None:
        remote = RemoteRanks(self._listener, job.world_size, self._meeting.rank, self._host)
        remote.remember(self._roster)
        agent = Agent(local, remote, job, budgets, ledger, self._host)
        try:
            if not agent.watch(interrupts):
                remote.send("interrupted")
                return None
            remote.send("end")
            unkillable = local.end()
            remote.await_end()
            run = agent.build_run(self._environment.launcher, (*unkillable, *remote.unkillable))
            remote.send("run", run=encode_run(run))
            _lines_to_followers.extend(remote.release_links())
        except GpudiagError as error:
            remote.await_greetings()
            remote.send("failed", exit_status=int(error.exit_status))
            raise
        finally:
            remote.close()
        return run


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
