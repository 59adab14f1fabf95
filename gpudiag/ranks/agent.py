"""The torch-free agent that decides: it watches all ranks, outlives them, and says what happened."""

import select
import time
from dataclasses import replace

from gpudiag.model.measure import Incident, IncidentKind, InjectedFault, RankReport
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason, Reading
from gpudiag.ranks import evidence, watchdog
from gpudiag.ranks.assignment import Assignment
from gpudiag.ranks.clock import SAME_CLOCK
from gpudiag.ranks.dump import RankDump
from gpudiag.ranks.inject import Fault
from gpudiag.ranks.ledger import Ledger
from gpudiag.ranks.remote import RemoteRanks
from gpudiag.ranks.run import RankRun
from gpudiag.ranks.stages import IMPORT, RENDEZVOUS
from gpudiag.ranks.start_error import slow_start, start_error
from gpudiag.ranks.stragglers import find_stragglers
from gpudiag.ranks.view import Life, RankView

# Deaths are told at once; this is how often stops, positions and events are looked for. With four
# ranks ten looks a second took 0.3 % to 0.5 % of one of two busy x86 processors.
_TICK_SECONDS = 0.1

# Agents that lost their leader, or waited for it in vain, are all with the next one by then.
_GATHER_SECONDS = 2.0

# What is found while processes are alive, so that they can be asked where they are.
_HANGS = frozenset({IncidentKind.SILENT, IncidentKind.STALLED, IncidentKind.MISMATCHED})


class Agent:
    """Leads one run: watches every rank until all have ended well or an incident is certain."""

    def __init__(self, assignment: Assignment, remote: RemoteRanks | None, ledger: Ledger) -> None:
        """Watch this agent's own ranks, and those of other agents in `remote`; nothing happens before `watch`."""
        self._job = assignment.job
        self._local = assignment.local
        self._budgets = assignment.budgets
        self._interrupts = assignment.interrupts
        self._host = assignment.host
        self._remote = remote
        self._ledger = ledger
        self._incidents: tuple[Incident, ...] = ()
        self._views: tuple[RankView, ...] = ()
        self._dumps: dict[int, RankDump] = {}
        self._caller_is_done = assignment.is_over
        self._timed_out = False
        self._given_up = False
        self._ended_at = ledger.started
        led_after = time.monotonic() - ledger.started
        self._absent_after = max(self._budgets.seconds_for(RENDEZVOUS), led_after + _GATHER_SECONDS)

    def watch(self) -> bool:
        """Whether the run came to an end of its own; False if it is to be given up.

        Raises:
            UsageError: the interpreter cannot run ranks.
            RankStartError: the ranks could not be started.
        """
        over = False
        while not over and not self._interrupts.is_due():
            self._wait()
            self._look()
            if self._remote is not None and self._remote.interrupted:
                return False
            over = self._is_over()
        self._ended_at = time.monotonic()
        return over

    def build_run(self, launcher: str, unkillable: tuple[int, ...]) -> RankRun:
        """The run as its caller sees it; `unkillable` are pids that SIGKILL did not end."""
        return RankRun(
            world_size=self._job.world_size,
            launcher=launcher,
            host=self._host,
            reports=tuple(_report(view, self._dumps.get(view.rank), unkillable) for view in self._views),
            incidents=(*self._incidents, *self._find_stragglers()),
            results=dict(self._ledger.results),
            events=tuple(self._ledger.events),
            injected=tuple(self._describe_fault(fault) for fault in self._job.faults),
            seconds=self._ended_at - self._ledger.started,
            timed_out=self._timed_out,
            given_up=self._given_up,
        )

    def _describe_fault(self, fault: Fault) -> InjectedFault:
        at = self._ledger.faults_fired.get(fault.specification)
        never = Missing(MissingReason.NOT_ASKED, "it never happened")
        return InjectedFault(fault.specification, at is not None, never if at is None else at)

    def _find_stragglers(self) -> tuple[Incident, ...]:
        """Late ranks, where every rank came to the end of what it had to time."""
        arrivals = self._ledger.arrivals
        if len(arrivals) < self._job.world_size:
            return ()
        offsets = {record.local.rank: SAME_CLOCK for record in self._local.records}
        if self._remote is not None:
            offsets.update(self._remote.clock_offsets())
        hosts = {view.rank: view.host for view in self._views}
        return find_stragglers(arrivals, offsets, hosts, self._ledger.started)

    def _wait(self) -> None:
        remote = [] if self._remote is None else self._remote.filenos()
        select.select([*self._local.filenos(), self._interrupts.fileno(), *remote], [], [], _TICK_SECONDS)

    def _look(self) -> None:
        self._ledger.take(self._local.poll())
        views = self._local.views(self._host)
        if self._remote is not None:
            self._ledger.take(self._remote.poll())
            views = tuple(sorted((*views, *self._remote.views()), key=lambda view: view.rank))
            self._remote.tell(views)
        self._views = tuple(view.counted_from(self._ledger.started) for view in views)

    def _is_over(self) -> bool:
        self._refuse_failed_start()
        now = time.monotonic() - self._ledger.started
        all_ended = all(view.life is Life.ENDED for view in self._views)
        if all_ended or watchdog.is_settled(self._views, now):
            self._incidents = watchdog.find_incidents(self._views, self._budgets, now, self._absent_after)
        if any(incident.kind in _HANGS for incident in self._incidents):
            self._collect_dumps()
        if self._incidents or all_ended:
            return True
        self._timed_out = self._budgets.run_seconds is not None and now > self._budgets.run_seconds
        self._given_up = self._caller_is_done is not None and self._caller_is_done()
        if self._timed_out or self._given_up:
            self._collect_dumps()
        return self._timed_out or self._given_up

    def _collect_dumps(self) -> None:
        """Ask every rank that is alive where it hangs, and add it to the evidence; within a second."""
        if self._remote is not None:
            self._remote.send("dump")
        dumps = list(self._local.dump())
        if self._remote is not None:
            dumps += self._remote.collect_dumps()
        self._dumps = {dump.rank: dump for dump in dumps}
        self._incidents = tuple(
            replace(
                incident, evidence=(*incident.evidence, *evidence.of_dump(self._dumps.get(incident.rank)))
            )
            for incident in self._incidents
        )

    def _refuse_failed_start(self) -> None:
        """Raise if no rank of some agent can come up: nothing existed yet that an incident could be about."""
        if self._local.start_failure is not None:
            raise start_error(self._local.start_failure, self._local.stderr_tail())
        if self._remote is not None and self._remote.start_failure is not None:
            raise start_error(*self._remote.start_failure)
        limit = self._budgets.seconds_for(IMPORT)
        starting = any(record.life is Life.NOT_STARTED for record in self._local.records)
        if starting and time.monotonic() - self._ledger.started > limit:
            raise slow_start(limit, self._job.preload)


def _report(view: RankView, dump: RankDump | None, unkillable: tuple[int, ...]) -> RankReport:
    entered = view.entered
    return RankReport(
        rank=view.rank,
        local_rank=view.local_rank,
        host=view.host,
        pid=Missing(MissingReason.NOT_ASKED, "never started") if view.pid is None else view.pid,
        stage=view.stage,
        exit=_exit_reading(view, unkillable),
        sequence=entered if entered else Missing(MissingReason.NOT_ASKED, "entered no collective"),
        stack=(dump and dump.stack) or NOT_ASKED,
        flight_recorder=(dump and dump.flight_recorder) or NOT_ASKED,
    )


def _exit_reading(view: RankView, unkillable: tuple[int, ...]) -> Reading[int]:
    if view.exit is not None:
        return view.exit
    if view.pid in unkillable:
        return Missing(MissingReason.TIMED_OUT, "did not die of SIGKILL: it waits in the kernel")
    if view.life is Life.ENDED:
        return Missing(MissingReason.ERROR, "its agent ended with it, and could not say how")
    return Missing(MissingReason.NOT_ASKED, "killed by gpudiag when the run was over")
