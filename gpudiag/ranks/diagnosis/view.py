"""What an agent knows of one rank at one moment: the watchdog's only input."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gpudiag.compat import StrEnum
from gpudiag.linux.cgroup import Quota
from gpudiag.model.evidence import Evidence
from gpudiag.ranks.stages import IMPORT, STARTING_STAGES, Position

# A rank that uses less than this share of one processor is waiting, not working.
BUSY_SHARE = 0.2

# If a quota cuts short this share of its periods, and this many of them, it is what makes a rank slow.
THROTTLED_SHARE = 0.5
THROTTLED_PERIODS = 5


class Life(StrEnum):
    """What has become of a rank's process."""

    NOT_STARTED = "not_started"
    ALIVE = "alive"
    STOPPED = "stopped"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class RaisedError:
    """The exception that ended a rank's entry."""

    type: str
    message: str
    place: str | None
    at: float


@dataclass(frozen=True, slots=True)
class RankView:
    """All that is known of one rank at one moment. Times are seconds since the run started."""

    rank: int
    local_rank: int
    host: str
    life: Life
    pid: int | None = None
    exit: int | None = None
    seen_at: float = 0.0  # when its agent took this look
    changed_at: float = 0.0  # when `life` became what it is
    finished: bool = False  # it wrote its result
    finished_at: float = 0.0  # when, if it did
    raised: RaisedError | None = None
    position: Position | None = None
    still_seconds: float = 0.0  # how long its agent has seen it make no progress
    cpu_seconds: float = 0.0  # processor time that it used since then
    silent_seconds: float = 0.0  # how long its agent has not reported; 0 for this machine's own ranks
    agent_came: bool = True  # its agent has sent something; if not, the rank may never come
    connecting: bool = False  # it is in the rendezvous, and has no connection to the store there yet
    has_gpu: bool = False  # it has a GPU's device file open
    process_state: str = ""  # the letter in /proc/PID/stat
    traces: tuple[Evidence, ...] = ()  # what its agent read about its end: OOM killer, stderr
    frozen_by: str | None = None  # the control group that holds it
    quota: Quota | None = None  # what its control group's processor quota did to it
    wait_channel: str | None = None  # where in the kernel it waits, once it has stood still for a while
    load: float = 1.0  # how many times longer things take on its host than if idle (host_load.py)

    @property
    def stage(self) -> str:
        """The stage that the rank last entered; `import` before the first."""
        return IMPORT if self.position is None else self.position.stage

    @property
    def stage_count(self) -> int:
        """How many stages the rank has entered."""
        return 0 if self.position is None else self.position.stage_count

    @property
    def entered(self) -> int:
        """How many collectives the rank has entered."""
        return 0 if self.position is None else self.position.entered

    @property
    def inside(self) -> bool:
        """Whether the rank is inside a collective."""
        return self.position is not None and self.position.inside

    @property
    def alone(self) -> bool:
        """Whether the rank is inside local work, in which it waits for no other."""
        operation = None if self.position is None else self.position.operation
        return self.inside and operation is not None and operation.alone

    @property
    def progress(self) -> tuple[int, int]:
        """Stages and collectives entered; all ranks go through the same ones in the same order."""
        return (0, 0) if self.position is None else self.position.progress

    @property
    def predicted_seconds(self) -> float | None:
        """Seconds that the rank's current collective should take; None outside, or if not announced."""
        if self.position is None or not self.position.inside or self.position.operation is None:
            return None
        return self.position.operation.predicted_seconds

    @property
    def busy(self) -> bool:
        """Whether the rank, since it last moved, has used the processor, or is runnable now."""
        return self.process_state == "R" or self.cpu_seconds > BUSY_SHARE * self.still_seconds

    @property
    def throttled(self) -> bool:
        """Whether its control group's processor quota holds it back most of the time."""
        quota = self.quota
        return (
            quota is not None
            and quota.throttled_periods >= THROTTLED_PERIODS
            and quota.throttled_periods > THROTTLED_SHARE * quota.periods
        )

    @property
    def opening_gpu(self) -> bool:
        """Whether the driver may still be initializing a GPU for the rank: seconds without processor time."""
        return self.has_gpu and self.entered == 0

    @property
    def waiting_seconds(self) -> float:
        """Seconds since the rank last moved, or since it ended."""
        return self.seen_at - self.changed_at if self.life is Life.ENDED else self.still_seconds

    @property
    def running(self) -> bool:
        """Whether the rank's process is alive or stopped."""
        return self.life in (Life.ALIVE, Life.STOPPED)

    @property
    def ended_well(self) -> bool:
        """Whether the rank returned a result and its process ended with status 0."""
        return self.life is Life.ENDED and self.finished and self.exit == 0

    def waited_at_most(self, seconds: float) -> "RankView":
        """The same view; in a stage of the start, a longer wait than that counts as so many seconds."""
        if self.stage not in STARTING_STAGES or self.still_seconds <= seconds:
            return self
        share = max(0.0, seconds) / self.still_seconds
        return replace(self, still_seconds=self.still_seconds * share, cpu_seconds=self.cpu_seconds * share)

    def counted_from(self, started: float) -> "RankView":
        """The same view with its clock times converted to seconds since `started`."""
        raised = self.raised and replace(self.raised, at=self.raised.at - started)
        return replace(
            self,
            seen_at=self.seen_at - started,
            changed_at=max(0.0, self.changed_at - started),
            finished_at=max(0.0, self.finished_at - started),
            raised=raised,
        )


ViewListener = Callable[[Sequence[RankView]], None]
