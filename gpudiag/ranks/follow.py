"""An agent that does not lead: it reports its own rank, and does what the leader decides."""

import select
import time
from dataclasses import dataclass
from typing import Any

from gpudiag.model import codec
from gpudiag.ranks.assignment import Assignment
from gpudiag.ranks.ledger import Ledger
from gpudiag.ranks.link import Link
from gpudiag.ranks.roster import AgentPlace, Roster
from gpudiag.ranks.run import RankRun, decode_run
from gpudiag.ranks.start_error import started_twice
from gpudiag.ranks.view import RankView

_TICK_SECONDS = 0.1
_LEADER_UNHEARD_SECONDS = 3.0  # the leader speaks twice a second

# A launcher that lost one process sends SIGTERM to the others; the leader needs this to say why.
LAUNCHER_PATIENCE_SECONDS = 5.0


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
