"""What an agent has seen of one of its own ranks, updated with every look."""

from dataclasses import dataclass, field
from typing import Any

from gpudiag.model.evidence import Evidence
from gpudiag.ranks import process
from gpudiag.ranks.diagnosis import evidence
from gpudiag.ranks.diagnosis.control_group import GroupWatch, Quota
from gpudiag.ranks.diagnosis.view import Life, RaisedError, RankView
from gpudiag.ranks.event_log import EventKind, EventReader
from gpudiag.ranks.position import Position
from gpudiag.ranks.rank.job import LocalRank

# The template reports a rank's end within milliseconds. If it cannot (it was stopped), a process that has
# looked dead for this long counts as ended without the report.
_UNTOLD_END_SECONDS = 1.0

# A rank that has not moved for this long: read which collectives it entered last.
HISTORY_SECONDS = 0.3

# How often a rank's control groups are looked up, and how often their quota is read; and how long a rank
# must have stood still before it is checked for being frozen.
_GROUP_SECONDS = 0.5
_QUOTA_SECONDS = 1.0
_FROZEN_LOOK_SECONDS = 0.2
# Shown as the state of a process that its control group has frozen: /proc shows D (v1) or S (v2) then.
FROZEN_STATE = "F"

# Before a rank that stands still can be blamed, check once whether a GPU driver may be holding it.
_GPU_SECONDS = 0.7


@dataclass(slots=True)
class RankRecord:
    """What has been seen of one rank so far; `view` is the frozen form for the watchdog."""

    local: LocalRank
    events: EventReader
    life: Life = Life.NOT_STARTED
    pid: int | None = None
    exit: int | None = None
    seen_at: float = 0.0
    changed_at: float = 0.0
    finished: bool = False
    finished_at: float = 0.0
    raised: RaisedError | None = None
    position: Position | None = None
    still_seconds: float = 0.0
    cpu_seconds_total: float = 0.0
    cpu_seconds_when_moved: float = 0.0
    process_state: str = ""
    has_gpu: bool = False
    looked_for_gpu: bool = False  # since it last moved
    wait_channel: str | None = None
    groups: GroupWatch = field(default_factory=GroupWatch)
    groups_looked_at: float = 0.0
    quota_read_at: float = 0.0
    frozen_by: str | None = None
    quota: Quota | None = None
    dead_since: float | None = None  # when it was first seen dead, until the template reports its end
    traces: tuple[Evidence, ...] = ()
    traced: bool = False

    def add_start(self, pid: int, at: float) -> None:
        """Record that the rank was forked."""
        self.pid, self.life, self.changed_at, self.still_seconds = pid, Life.ALIVE, at, 0.0

    def add_end(self, exit_status: int | None, at: float) -> None:
        """Record the end of the rank's process: its exit status or minus a signal; None if not known."""
        self.exit, self.life, self.changed_at = exit_status, Life.ENDED, at

    def add_events(self, events: list[dict[str, Any]]) -> None:
        """Record from lines of the rank's event file how its entry ended."""
        for event in events:
            data = event["data"]
            if event["kind"] == EventKind.RESULT:
                self.finished, self.finished_at = True, event["at"]
            elif event["kind"] == EventKind.RAISED:
                self.raised = RaisedError(data["type"], data["message"], data["place"], event["at"])

    def add_look(
        self,
        now: float,
        watched: float,
        position: Position | None,
        state: process.ProcessState | None,
        load: float = 1.0,
    ) -> None:
        """Record a look at the rank, `watched` seconds after the last one, on a host with this load."""
        self.seen_at = now
        if self.life in (Life.ALIVE, Life.STOPPED):
            self._add_process(now, state, load)
        if position is None or position.is_same_place(self.position):
            self.still_seconds += watched
        else:
            self.still_seconds, self.cpu_seconds_when_moved = 0.0, self.cpu_seconds_total
            self.looked_for_gpu = False
        self.position = position

    @property
    def knows_history(self) -> bool:
        """Whether its last collectives are worth reading: they change until it stands still or has ended."""
        return self.life is Life.ENDED or self.still_seconds >= HISTORY_SECONDS

    def view(self, host: str, load: float = 1.0) -> RankView:
        """The record for the watchdog, with the host's load; times are CLOCK_MONOTONIC."""
        return RankView(
            rank=self.local.rank,
            local_rank=self.local.local_rank,
            host=host,
            life=self.life,
            pid=self.pid,
            exit=self.exit,
            seen_at=self.seen_at,
            changed_at=self.changed_at,
            finished=self.finished,
            finished_at=self.finished_at,
            raised=self.raised,
            position=self.position,
            still_seconds=self.still_seconds,
            cpu_seconds=self.cpu_seconds_total - self.cpu_seconds_when_moved,
            has_gpu=self.has_gpu,
            process_state=self.process_state,
            frozen_by=self.frozen_by,
            quota=self.quota,
            wait_channel=self.wait_channel,
            traces=self.traces,
            load=load,
        )

    def _add_process(self, now: float, state: process.ProcessState | None, load: float) -> None:
        if state is None or state.state in process.DEAD_STATES:
            self._add_untold_end(now, _UNTOLD_END_SECONDS * load)
            return
        self.process_state, self.cpu_seconds_total = state.state, state.cpu_seconds
        if not self.looked_for_gpu and self.still_seconds >= _GPU_SECONDS:
            self.looked_for_gpu, self.has_gpu = True, process.has_open(state.pid, "/dev/nvidia")
            self.wait_channel = process.read_wait_channel(state.pid)
        self._look_at_groups(now, state.pid)
        stopped = state.state in process.STOPPED_STATES or self.frozen_by is not None
        if stopped != (self.life is Life.STOPPED):
            self.life = Life.STOPPED if stopped else Life.ALIVE
            self.changed_at, self.still_seconds = now, 0.0

    def _look_at_groups(self, now: float, pid: int) -> None:
        if now - self.groups_looked_at >= _GROUP_SECONDS:
            self.groups_looked_at = now
            self.groups.look(pid)
            # Read rarely: a quota need not be noticed within seconds, and its files are read one by one.
            if now - self.quota_read_at >= _QUOTA_SECONDS:
                self.quota_read_at, self.quota = now, self.groups.quota()
        rests = self.still_seconds >= _FROZEN_LOOK_SECONDS or self.frozen_by is not None
        self.frozen_by = self.groups.frozen_by() if rests else None
        if self.frozen_by is not None:
            self.process_state = FROZEN_STATE

    def _add_untold_end(self, now: float, patience_seconds: float) -> None:
        if self.dead_since is None:
            self.dead_since = now
        elif now - self.dead_since >= patience_seconds:
            self.add_end(None, self.dead_since)
            self.traces += (evidence.of_untold_end(),)
