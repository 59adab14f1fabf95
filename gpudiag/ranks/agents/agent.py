"""The torch-free agent that leads: it watches all ranks, outlives them, and reports what happened."""

import math
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from gpudiag.model.evidence import Evidence
from gpudiag.model.measure import Incident, IncidentKind, InjectedFault, LatenessSeries, RankReport
from gpudiag.model.number_ranges import name_ranks, number_ranges
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason, Reading
from gpudiag.ranks.agents.discovery import Siblings
from gpudiag.ranks.agents.interrupts import Interrupts
from gpudiag.ranks.agents.link import wait_readable
from gpudiag.ranks.agents.local import LocalRanks
from gpudiag.ranks.agents.meeting_faults import MeetingFaults
from gpudiag.ranks.agents.messages import DumpRequest
from gpudiag.ranks.agents.own_addresses import NOTICE_SECONDS
from gpudiag.ranks.agents.remote import RemoteRanks
from gpudiag.ranks.agents.tcp_counters import TcpCounters
from gpudiag.ranks.clock import SAME_CLOCK, ClockOffset
from gpudiag.ranks.diagnosis import evidence, watchdog
from gpudiag.ranks.diagnosis.dump import RankDump
from gpudiag.ranks.diagnosis.firewalls import join_unreached
from gpudiag.ranks.diagnosis.loss import find_lossy_paths
from gpudiag.ranks.diagnosis.outage import CUT_SECONDS, Outages
from gpudiag.ranks.diagnosis.paths import explain, may_be_the_network
from gpudiag.ranks.diagnosis.skew import find_skew
from gpudiag.ranks.diagnosis.split import find_kept_away, find_split
from gpudiag.ranks.diagnosis.start_clock import StartClock
from gpudiag.ranks.diagnosis.start_error import FailedStart, start_error, start_incident
from gpudiag.ranks.diagnosis.stragglers import find_stragglers, list_lateness
from gpudiag.ranks.diagnosis.suspicion import Suspicions, may_heal
from gpudiag.ranks.diagnosis.view import Life, RankView, ViewListener
from gpudiag.ranks.event_log import EventLog
from gpudiag.ranks.inject import Fault
from gpudiag.ranks.rank.job import Job
from gpudiag.ranks.rank_run import RankEvent, RankResult, RankRun
from gpudiag.ranks.stages import IMPORT, INIT, RENDEZVOUS, Budgets

# Deaths are noticed at once; this is how often stops, positions and events are polled. With four
# ranks, polling ten times a second took 0.3 % to 0.5 % of one of two busy x86 processors.
_TICK_SECONDS = 0.1

# By then all agents that lost their leader, or never reached it, are connected to the next one.
_GATHER_SECONDS = 2.0
# Those of one machine find out at about the same time that they cannot reach rank 0's.
_GATHER_HERE_SECONDS = 0.5
# A leader that went silent is not missed by all at the same moment (membership.py): each first asks it.
_GATHER_AFTER_SILENCE_SECONDS = 3.5

# All processes of a second job have come by then.
_TWINS_SECONDS = 3.0

# Once all agents have met, ranks that do not move in these stages for so long may be kept apart by a
# firewall.
_STUCK_SECONDS = 2.0
# After that, where nobody knows how long they may take: only a fault of the network that is seen counts.
_STANDSTILL_SECONDS = 1.5

_CUTS = (IncidentKind.CUT_OFF, IncidentKind.PARTED, IncidentKind.NARROWED)

# Incidents found while processes are still alive, so that these can be asked where they hang.
_HANGS = frozenset({IncidentKind.SILENT, IncidentKind.STALLED, IncidentKind.MISMATCHED, IncidentKind.ENDED})


@dataclass(frozen=True, slots=True)
class Assignment:
    """The agent's own ranks, their job, and the limits; the run starts when this is created."""

    job: Job
    local: LocalRanks
    budgets: Budgets
    interrupts: Interrupts
    on_event: Callable[[RankEvent], None] | None
    is_over: Callable[[], bool] | None  # the caller has seen enough
    goes_on: Callable[[RankRun], bool] | None = None  # whether all agents run something more after this run
    siblings: Siblings | None = None  # the launcher's other processes, where it started this one
    notice: Callable[[str], None] | None = None  # gets a sentence while ranks are waited for
    on_views: ViewListener | None = None  # gets all ranks at each look
    tcp: TcpCounters = field(default_factory=TcpCounters)
    host: str = field(default_factory=socket.gethostname)
    started: float = field(default_factory=time.monotonic)  # CLOCK_MONOTONIC, in seconds


class Agent:
    """Leads one run: watches every rank until all have ended well or an incident is certain."""

    def __init__(self, assignment: Assignment, remote: RemoteRanks | None, log: EventLog) -> None:
        """Prepare to `watch` this agent's own ranks, and those of other agents in `remote`."""
        self._job = assignment.job
        self._local = assignment.local
        self._budgets = assignment.budgets
        self._interrupts = assignment.interrupts
        self._host = assignment.host
        self._remote = remote
        self._log = log
        self._incidents: tuple[Incident, ...] = ()
        self._suspicions = Suspicions()
        self._suspected: tuple[Incident, ...] = ()
        self._outages = Outages()
        self._looked_at = 0.0  # when the views were taken
        self._views: tuple[RankView, ...] = ()
        self._dumps: dict[int, RankDump] = {}
        self._siblings = assignment.siblings
        self._tcp = assignment.tcp
        self._notice = assignment.notice
        self._on_views = assignment.on_views
        self._notify = assignment.notice
        self._start_failed_at: float | None = None
        self._caller_is_done = assignment.is_over
        self._goes_on = assignment.goes_on
        self._timed_out = False
        self._given_up = False
        self._ended_at = log.started
        led_after = time.monotonic() - log.started
        self._gathered_after = led_after + _GATHER_AFTER_SILENCE_SECONDS
        self.meeting_faults: MeetingFaults | None = None  # of the leader of agents on several hosts
        self._led_after = led_after
        self._gather_seconds = _GATHER_SECONDS
        self._start_clock = StartClock(self._budgets.seconds_for(RENDEZVOUS))
        self._accounted_after: float | None = None

    def expect_nobody(self) -> None:
        """Wait for no other rank than those of this machine: the others cannot be reached, for sure."""
        self._start_clock.stop()
        self._gather_seconds = _GATHER_HERE_SECONDS

    def watch(self) -> bool:
        """Watch the run; True once it is over, False to give it up. Raises UsageError: no interpreter."""
        over = False
        while not over and not self._interrupts.is_due():
            self._wait()
            self._look()
            if self._remote is not None and (
                self._remote.interrupted or self._remote.strays.yields_to is not None
            ):
                return False
            over = self._is_over() or self._is_given_up_by_launcher()
        self._ended_at = time.monotonic()
        return over

    def _is_given_up_by_launcher(self) -> bool:
        """Whether the launcher ends the run because of ranks that died before the rendezvous."""
        absent = any(view.life is Life.NOT_STARTED for view in self._views)
        if self._siblings is not None and absent and self._interrupts.received:
            self._incidents = self._find_unseen_ends(self._looked_at)
        return bool(self._incidents)

    def build_run(self, launcher: str, unkillable: tuple[int, ...]) -> RankRun:
        """The run for the caller; `unkillable` are pids that SIGKILL did not end."""
        run = RankRun(
            world_size=self._job.world_size,
            launcher=launcher,
            host=self._host,
            ranks=tuple(_report(view, self._dumps.get(view.rank), unkillable) for view in self._views),
            incidents=self._all_incidents(),
            returned=tuple(RankResult(rank, data) for rank, data in self._log.results.items()),
            events=tuple(self._log.events),
            injected=tuple(self._describe_fault(fault) for fault in self._job.faults),
            seconds=self._ended_at - self._log.started,
            timed_out=self._timed_out,
            given_up=self._given_up,
            lateness=self._measure_lateness(),
        )
        return run if self._goes_on is None else replace(run, goes_on=self._goes_on(run))

    def _describe_fault(self, fault: Fault) -> InjectedFault:
        at = self._log.faults_fired.get(fault.specification)
        never = Missing(MissingReason.NOT_ASKED, "it never happened")
        return InjectedFault(fault.specification, at is not None, never if at is None else at)

    def _all_incidents(self) -> tuple[Incident, ...]:
        """What ended the run; then what only held ranks up."""
        throttled = watchdog.find_throttled(self._views, self._incidents)
        known = {incident.rank for incident in throttled}
        late = (incident for incident in self._find_stragglers() if incident.rank not in known)
        # If an incident ended the run, those that healed before it would only hide the cause.
        healed = () if self._incidents else (*self._outages.healed(), *self._suspicions.healed(throttled))
        return (*self._incidents, *throttled, *healed, *late, *self._find_loss(), *self._find_skew())

    def _find_loss(self) -> tuple[Incident, ...]:
        """The ways between hosts on which segments were lost, unless a cut is why they were sent again."""
        if self._remote is None or any(one.kind in _CUTS for one in self._incidents):
            return ()
        sent = self._remote.sent_segments(self._host, self._tcp.totals())
        away = [ends for ends in sent if any(map(self._outages.has_end, ends))]
        return find_lossy_paths({ends: sent[ends] for ends in sent if ends not in away}, self._looked_at)

    def _find_skew(self) -> tuple[Incident, ...]:
        """What the ranks of several agents do not have alike."""
        if self._remote is None:
            return ()
        own = {
            record.local.rank: self._local.settings for record in self._local.records if self._local.settings
        }
        hosts = {view.rank: view.host for view in self._views}
        return find_skew({**own, **self._remote.settings()}, hosts, self._looked_at)

    def _find_stragglers(self) -> tuple[Incident, ...]:
        """Late ranks, if every rank finished its timed iterations; else none."""
        arrivals = self._log.arrivals
        if len(arrivals) < self._job.world_size:
            return ()
        hosts = {view.rank: view.host for view in self._views}
        return find_stragglers(arrivals, self._clock_offsets(), hosts, self._log.started)

    def _measure_lateness(self) -> Reading[LatenessSeries]:
        """Which rank was late when, if every rank finished its timed iterations."""
        if len(self._log.arrivals) < self._job.world_size:
            return Missing(MissingReason.NOT_ASKED, "not every rank finished its timed iterations")
        return list_lateness(self._log.arrivals, self._clock_offsets(), self._log.started)

    def _clock_offsets(self) -> dict[int, ClockOffset]:
        """How far each rank's clock is from this agent's."""
        offsets = {record.local.rank: SAME_CLOCK for record in self._local.records}
        if self._remote is not None:
            offsets.update(self._remote.clock_offsets())
        return offsets

    def _wait(self) -> None:
        remote = [] if self._remote is None else self._remote.filenos()
        wait_readable((*self._local.filenos(), self._interrupts.fileno(), *remote), _TICK_SECONDS)

    def _look(self) -> None:
        self._looked_at = time.monotonic() - self._log.started
        self._log.add(self._local.poll())
        views = self._local.views(self._host)
        if self._remote is not None:
            self._log.add(self._remote.poll())
            if self._remote.spans_hosts:
                self._tcp.sample(self._local.live_pids())
            views = tuple(sorted((*views, *self._remote.views()), key=lambda view: view.rank))
            self._remote.send_views(views)
        self._views = self._start_clock.add(
            [view.counted_from(self._log.started) for view in views], self._looked_at
        )
        if self._on_views is not None:
            self._on_views(self._views)
        if self._remote is not None and self._notice is not None and self._looked_at >= NOTICE_SECONDS:
            notice, self._notice = self._notice, None
            absent = [view.rank for view in self._views if view.life is Life.NOT_STARTED]
            if absent:
                notice(_describe_absent(absent, self._views))

    def _is_over(self) -> bool:
        # Not the current time: this process may have lost the processor since, and seen nothing.
        now = self._looked_at
        if self._has_failed_start(now):
            return True
        all_ended = all(view.life is Life.ENDED for view in self._views)
        self._timed_out = self._budgets.run_seconds is not None and now > self._budgets.run_seconds
        gathering = self._remote is not None and now < self._gathered_after and self._remote.is_gathering
        if gathering:
            return False
        if self.meeting_faults is not None:
            self._incidents = self.meeting_faults.find_early(self._views, now)
            if self._incidents:
                return True
        if all_ended or self._timed_out or watchdog.is_settled(self._views, now):
            self._incidents = self._explain_by_network(self._judge(now))
            self._timed_out = self._timed_out and not self._incidents
        if any(incident.kind in _HANGS for incident in self._incidents):
            self._collect_dumps()
        if self._incidents or all_ended:
            return True
        self._given_up = self._caller_is_done is not None and self._caller_is_done()
        if self._timed_out or self._given_up:
            self._collect_dumps()
        return self._timed_out or self._given_up

    def _judge(self, now: float) -> tuple[Incident, ...]:
        """The incidents that are certain; once the run is out of time, those that are suspected too."""
        # Our own ranks that are not up yet are still being started; those of other agents may be reported.
        budgets = self._budgets
        if self._timed_out:
            budgets = budgets.at_the_end(watchdog.load_of(self._views))
        absent_after = self._absent_after
        if self._remote is not None and (self._timed_out or self._are_all_accounted_for(now)):
            absent_after = min(now, absent_after)
        suspected = watchdog.find_incidents(self._views, budgets, now, absent_after)
        split = self._find_split(suspected, now) or self._find_kept_away(now)
        if split:
            return split
        certain = suspected
        if may_heal(suspected) and not self._timed_out:
            patience = self._budgets.patience
            certain = watchdog.find_incidents(self._views, self._budgets, now, absent_after, patience)
        self._suspicions.add(suspected, now)
        self._suspected = suspected
        return () if self._may_be_kept_away(certain) else tuple(map(self._add_twins, certain))

    def _find_split(self, suspected: tuple[Incident, ...], now: float) -> tuple[Incident, ...]:
        """Which ranks look for rank 0 elsewhere, count other ranks, or are nowhere; or two jobs."""
        jobs = self._find_two_jobs(now)
        if jobs:
            return jobs
        strays = () if self._remote is None else self._remote.strays.lookers()
        if (
            self.meeting_faults is not None
        ):  # those that reach the ranks' store are shut out, and reported as such
            strays = tuple(one for one in strays if one.rank not in self.meeting_faults.noted)
        if self._remote is None or not strays:
            return ()
        if any(one.kind is not IncidentKind.NOT_STARTED for one in suspected):
            return ()
        met = self._remote.strays.met()
        split = find_split(met, strays, now, over=bool(suspected))
        if self.meeting_faults is not None:
            hosts = frozenset(met.hosts.values())
            split = join_unreached(split, met.leader.host, hosts, self.meeting_faults.agent_port)
        elsewhere = {one.rank for one in strays}
        return (*split, *(one for one in suspected if one.rank not in elsewhere)) if split else ()

    def _find_kept_away(self, now: float) -> tuple[Incident, ...]:
        """Which ranks stand still in the rendezvous, as another server answers for rank 0."""
        return () if self._remote is None else find_kept_away(self._remote.kept_away(), now)

    def _may_be_kept_away(self, certain: Sequence[Incident]) -> bool:
        """Whether ranks are late in the rendezvous, and another server may keep one there."""
        if self._remote is None or self._timed_out:
            return False
        if not self._remote.looks_at_ways and not self._remote.kept_away():
            return False
        late = (IncidentKind.SILENT, IncidentKind.STALLED)
        return all(one.kind in late and one.stage == RENDEZVOUS for one in certain)

    def _find_two_jobs(self, now: float) -> tuple[Incident, ...]:
        """That all ranks are here, and others that are the same ranks, too."""
        absent = any(view.life is Life.NOT_STARTED for view in self._views)
        if self._remote is None or not self._remote.strays.twins or absent:
            return ()
        if time.monotonic() - self._remote.strays.twins_since < _TWINS_SECONDS:
            return ()
        (rank, host), *_ = sorted(self._remote.strays.twins)
        twins = tuple(words for _, words in sorted(self._remote.strays.twins.items()))
        place = Evidence(
            "uses", self._remote.strays.place, source="the launcher's variables or --init-method"
        )
        return (Incident(IncidentKind.SPLIT, rank, host, RENDEZVOUS, now, (evidence.of_twins(twins), place)),)

    @property
    def _absent_after(self) -> float:
        """From when on ranks that have shown no sign never come."""
        if (
            self._remote is None
        ):  # our own ranks start once their import is done, which has a limit of its own
            return math.inf
        return max(self._start_clock.over_after(self._led_after), self._led_after + self._gather_seconds)

    def _add_twins(self, incident: Incident) -> Incident:
        """The absence of a rank with those started twice: one may be it, with a wrong number."""
        twins = () if self._remote is None else tuple(self._remote.strays.twins.values())
        if incident.kind is not IncidentKind.NOT_STARTED or not twins:
            return incident
        return replace(incident, evidence=(*incident.evidence, evidence.of_twins(twins)))

    def _are_all_accounted_for(self, now: float) -> bool:
        """Whether as many ranks were started twice as are absent: nobody is left who could still come."""
        own = {record.local.rank for record in self._local.records}
        absent = sum(view.life is Life.NOT_STARTED and view.rank not in own for view in self._views)
        if self._remote is None or not absent or len(self._remote.strays.twins) < absent:
            return False
        self._accounted_after = self._accounted_after or now + _GATHER_SECONDS / 2
        return now >= self._accounted_after

    def _explain_by_network(self, certain: tuple[Incident, ...]) -> tuple[Incident, ...]:
        """The incidents; a network cut replaces the hangs that it explains, also before the hang limit."""
        waiting = certain or self._suspected or self._find_standstill()
        if self.meeting_faults is not None:
            kept_apart: tuple[Incident, ...] = ()
            if self._are_meeting(certain):
                kept_apart = self.meeting_faults.find(waiting, self._views, certain=bool(certain))
            if kept_apart:
                return kept_apart
            certain = self.meeting_faults.explain_absent(certain)
        if self._remote is None or not all(map(may_be_the_network, waiting)):
            return certain
        self._outages.observe(self._views, self._looked_at)
        silent = any(view.silent_seconds for view in self._views)
        if not waiting and not silent and not self._remote.is_looking:
            self._remote.forget_paths()
            self._outages.close(self._looked_at)
            return ()
        if certain and not may_heal(certain):
            paths = self._remote.look_at_paths(self._host)
            return certain if paths is None else explain(certain, paths) or certain
        return self._judge_paths(self._remote, certain, waiting)

    def _are_meeting(self, certain: Sequence[Incident]) -> bool:
        """Whether ranks wait before a second collective: addresses and ports are still good."""
        if all(view.entered > 1 for view in self._views):
            return False
        return bool(certain or self._suspected) or any(
            view.stage in (RENDEZVOUS, INIT) for view in self._views
        )

    def _judge_paths(
        self, remote: RemoteRanks, certain: tuple[Incident, ...], waiting: tuple[Incident, ...]
    ) -> tuple[Incident, ...]:
        """The incidents that are certain, by looks at the network since ranks began to wait."""
        urgent = bool(certain or self._suspected) or any(view.silent_seconds for view in self._views)
        found = remote.look_on_at_paths(self._host, urgent=urgent)
        if found is None:
            return certain
        looks = [(look.began - self._log.started, look.paths) for look in found]
        if self._timed_out and not looks and (paths := remote.look_at_paths(self._host)) is not None:
            looks = [(self._looked_at, paths)]
        before = self._outages.names
        judged = self._outages.judge(
            looks, certain, waiting, self._views, self._looked_at, at_the_end=self._timed_out
        )
        cut = self._outages.names
        if cut is not None and before is None and self._notify is not None and not judged:
            self._notify(f"{cut}; waiting up to {CUT_SECONDS:.0f} s for the network to come back")
        if self._outages.is_excused(self._looked_at):
            self._suspicions.forget()
        return judged

    def _find_standstill(self) -> tuple[Incident, ...]:
        """That all ranks are up, and none of those that still meet, or none at all, has moved for a while."""
        if not self._views or any(view.life is not Life.ALIVE for view in self._views):
            return ()
        meeting = [view for view in self._views if view.stage in (RENDEZVOUS, INIT)]
        limit = _STUCK_SECONDS if meeting else _STANDSTILL_SECONDS
        if any(view.still_seconds < limit for view in meeting or self._views):
            return ()
        first = (meeting or self._views)[0]
        at_seconds = max(0.0, first.seen_at - first.still_seconds)
        return (Incident(IncidentKind.STALLED, first.rank, first.host, first.stage, at_seconds, ()),)

    def _collect_dumps(self) -> None:
        """Ask every live rank where it hangs, and add the answers to the evidence; takes up to a second."""
        if self._remote is not None:
            self._remote.send(DumpRequest())
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

    def _has_failed_start(self, now: float) -> bool:
        """Whether some agent cannot start its ranks, and all other such agents have had time to report."""
        self._local.limit_start(now, self._budgets.seconds_for(IMPORT))
        failures = list(self._start_failures())
        for one in failures:
            if one.failure.is_mistake:
                raise start_error(one.failure)
        if not failures:
            return False
        self._start_failed_at = now if self._start_failed_at is None else self._start_failed_at
        # Under a launcher a broken file system hits several agents: give the others time to report it.
        if self._remote is not None and now - self._start_failed_at < _GATHER_SECONDS / 2:
            return False
        self._incidents = tuple(
            start_incident(one.failure, self._view_of(one), one.stderr, one.ranks) for one in failures
        )
        return True

    def _start_failures(self) -> Iterator[FailedStart]:
        if self._local.start_failure is not None:
            ranks = tuple(record.local.rank for record in self._local.records)
            yield FailedStart(ranks, self._host, self._local.start_failure, self._local.stderr_tail())
        if self._remote is not None:
            yield from self._remote.start_failures

    def _view_of(self, failed: FailedStart) -> RankView:
        view = next(view for view in self._views if view.rank == failed.ranks[0])
        return replace(view, host=failed.host, seen_at=self._looked_at)

    def _find_unseen_ends(self, now: float) -> tuple[Incident, ...]:
        """Ranks that had died before the rendezvous when the launcher gave the run up."""
        gone = frozenset() if self._siblings is None else self._siblings.gone()
        return tuple(
            Incident(IncidentKind.DIED, view.rank, self._host, IMPORT, now, evidence.of_unseen_end())
            for view in self._views
            if view.life is Life.NOT_STARTED and view.rank in gone
        )


def _describe_absent(absent: Sequence[int], views: Sequence[RankView]) -> str:
    """Who is waited for, and who has come, on which hosts."""
    hosts: dict[str, list[int]] = {}
    for view in views:
        if view.rank not in absent:
            hosts.setdefault(view.host, []).append(view.rank)
    come = "; ".join(f"{number_ranges(ranks)} on {host}" for host, ranks in hosts.items())
    return f"waiting for {name_ranks(absent)}: {come or 'none'} came"


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
        return Missing(MissingReason.ERROR, "its agent ended with it, so its end is unknown")
    return Missing(MissingReason.NOT_ASKED, "killed by gpudiag at the end of the run")
