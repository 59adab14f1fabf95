"""The nouns of `gpudiag run`: how a job went, as an agent beside it saw it."""

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from gpudiag.compat import StrEnum
from gpudiag.model.explanation import LogExplanation
from gpudiag.model.finding import Finding, Outcome
from gpudiag.model.job import JobVerdict
from gpudiag.model.kernel_log import KernelEvent
from gpudiag.model.reading import Reading

OWN_PREFIX = "gpudiag: "  # of each line that `gpudiag run` prints among the job's own


@dataclass(frozen=True, slots=True)
class Pulse:
    """What the kernel shows of one rank's main thread at one moment, cheaply.

    Times count from the same start. The sums grow: time on a processor, time ready and without one, how often
    it was given one, how often it went to sleep of its own accord.
    """

    at_seconds: float
    ran_seconds: float
    queued_seconds: float
    runs: int
    sleeps: int


@dataclass(frozen=True, slots=True)
class Glance:
    """Where a rank's main thread was at one moment, by its Python stack."""

    at_seconds: float
    asleep: bool
    place: str  # the user's line: `train.py:31 in main`
    awaited: str  # ranks, gpu, loader ... by reference/waits.toml; empty: nothing known
    words: str = ""
    operation: str = ""  # all_reduce, barrier, backward ...; empty: none, or nothing known


@dataclass(frozen=True, slots=True)
class StepTime:
    """The job's own rhythm: how long one round of its work takes, from when all ranks run and wait."""

    seconds: float
    rounds: int  # that the answer rests on
    strength: float  # the correlation of one round with the next, 0 to 1
    over_seconds: float  # of watching


@dataclass(frozen=True, slots=True)
class RankShare:
    """How one rank spent its time, as shares of it, 0 to 1."""

    rank: int
    waits_for_ranks: float
    runs: float  # on a processor, while not waiting for ranks
    queues: float  # ready to run, and no processor free
    sleeps: float  # waits for something else: a file, its loader, a sleep
    at: str = ""  # where it is mostly, while it does not wait for ranks
    glances: int = 0


@dataclass(frozen=True, slots=True)
class Stall:
    """A time in which some rank stood still for longer than the job's own rhythm explains."""

    began: datetime
    stood_seconds: float  # until it was reported, or until the job continued
    limit_seconds: float
    reported: bool  # as a fault: not explained by work that was seen to move
    ended: bool  # the job went on by itself
    # When something moved again; soon before a failure or after a signal, that is no going on.
    over: datetime | None
    look: JobVerdict | None  # None where the stacks could not be read
    unseen: str = ""  # why they could not


class RankEnd(StrEnum):
    """How a rank's process ended."""

    FINISHED = "finished"  # exit status 0
    FAILED = "failed"  # any other
    KILLED = "killed"  # by a signal
    ENDED = "ended"  # the kernel did not report how
    RUNS = "runs"  # it outlives the command


@dataclass(frozen=True, slots=True)
class RankRecord:
    """One rank's process on this machine, from when it was first seen to its end."""

    rank: Reading[int]
    pid: int
    started: datetime
    end: RankEnd
    ended: datetime | None
    exit_code: Reading[int]
    signal: str | None  # SIGKILL
    order: int | None  # 1 for the first process to fail, 2 for the next; None where it did not fail
    attempt: int  # 1, and one more after each restart of the ranks by the launcher
    error: str | None = None  # the exception that ended it
    error_place: str | None = None  # the user's own line in it
    last_place: str | None = None  # where it was last seen
    raised: datetime | None = (
        None  # when that exception was raised; a process takes a second and more to end after it
    )
    last_wait: str | None = (
        None  # what it waited in for other ranks, when it was last seen: `all_reduce (train.py:9 in main)`
    )
    still_seconds: float | None = (
        None  # for how long its main thread had not woken up, or not gone to sleep, at its end
    )


@dataclass(frozen=True, slots=True)
class SignalSeen:
    """A signal that reached gpudiag while the job ran."""

    name: str
    at: datetime
    passed_on: bool  # by gpudiag; else the whole group had it


@dataclass(frozen=True, slots=True)
class WatchCost:
    """What the watching took."""

    processor_seconds: float  # of gpudiag and all that it started
    ranks_processor_seconds: Reading[float]  # of the main threads of the ranks, as last seen
    looks: int  # with stacks of all ranks
    glances: int  # at one rank's stack


@dataclass(frozen=True, slots=True)
class JobRun:
    """`gpudiag.job_run/2`: how a job of `gpudiag run` ended, what happened to its ranks, who is to blame."""

    SCHEMA: ClassVar[str] = "gpudiag.job_run/2"

    outcome: Outcome
    headline: str  # one sentence
    findings: tuple[Finding, ...]
    command: tuple[str, ...]  # secrets masked
    host: str
    run_id: str
    started: datetime
    seconds: float
    exit_status: int | None  # of the command, as a shell shows it; None while it runs
    signal: str | None  # that ended the command
    torch_version: Reading[str]
    variables: dict[str, str]  # that gpudiag set for the job
    folder: str | None  # where dumps of the flight recorder are; None where there were none
    world_size: Reading[int]
    ranks: tuple[RankRecord, ...]
    steps: Reading[StepTime]
    shares: tuple[RankShare, ...]
    stalls: tuple[Stall, ...]
    signals: tuple[SignalSeen, ...]
    kernel: Reading[tuple[KernelEvent, ...]]  # of the time of the run
    explained: LogExplanation | None  # of the job's output, where that is a file, and of its error files
    cost: WatchCost
    unseen: tuple[str, ...]  # what could not be looked at, and what to do about it
