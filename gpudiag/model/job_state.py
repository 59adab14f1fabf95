"""What a job reports about itself: torch's flight recorder, NCCL's RAS subsystem, torch's debug server.

They are what the readers of `gpudiag.probe.job` return and what `gpudiag.checks.job` judges; nothing in them
was decided. A sequence number counts the collectives that one rank has launched in one process group.
"""

from dataclasses import dataclass

from gpudiag.compat import StrEnum
from gpudiag.model.reading import NOT_ASKED, Reading


class CallState(StrEnum):
    """How far a recorded call came, by what the recorder of its backend keeps."""

    SCHEDULED = "scheduled"  # launched by the host; gloo has no later word than this one
    STARTED = "started"  # its kernel runs on the GPU
    COMPLETED = "completed"


@dataclass(frozen=True, slots=True)
class RecordedFrame:
    """One frame of the stack in which a call was launched; `file` is the whole path."""

    file: str
    function: str
    line: int

    @property
    def place(self) -> str:
        """`train.py:10`."""
        return f"{self.file.rpartition('/')[2]}:{self.line}"


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One entry of a flight recorder: a collective, or a send or receive, that a rank launched."""

    record_id: int
    group: str  # torch's name of the process group, the same on all of its ranks
    group_description: str  # `default_pg`, `dp`; empty where nobody gave one
    backend: str  # nccl, gloo; empty where the entry has none
    operation: str  # all_reduce, as torch's profiler names it
    sequence: int  # of collectives, or of sends and receives, in the group; -1 where the dump has none
    is_point_to_point: bool
    state: CallState
    retired: bool  # the backend has let go of it
    input_sizes: tuple[tuple[int, ...], ...] = ()
    input_dtypes: tuple[str, ...] = ()
    output_sizes: tuple[tuple[int, ...], ...] = ()
    output_dtypes: tuple[str, ...] = ()
    created_at: Reading[float] = NOT_ASKED  # seconds since 1970, by the clock of its host
    started_at: Reading[float] = NOT_ASKED
    completed_at: Reading[float] = NOT_ASKED
    timeout_seconds: Reading[float] = NOT_ASKED
    source: int | None = None  # of a send or receive: the rank in the group that sends
    destination: int | None = None
    frames: tuple[RecordedFrame, ...] = ()  # innermost first; empty where the dump has no stacks

    @property
    def is_pending(self) -> bool:
        """Whether the call has not come to its end: gloo shows it only by releasing it."""
        if self.state is CallState.COMPLETED:
            return False
        return not self.retired if self.backend == "gloo" else True


@dataclass(frozen=True, slots=True)
class RecordedGroup:
    """A process group as the dump describes it; gloo's dumps do not name the members."""

    name: str
    description: str = ""
    ranks: tuple[int, ...] = ()  # of the job; empty where the dump has none


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """How far the rank is in one of its process groups, by the numbers of the last collectives.

    It is -1 for none.
    """

    group_number: str  # of this process, in the order in which it made them
    last_enqueued: int
    last_started: int
    last_completed: int


@dataclass(frozen=True, slots=True)
class FlightRecord:
    """What the flight recorder of one rank held when it was dumped.

    The calls are in the order in which they were launched.
    """

    rank: Reading[int]
    version: str  # of the dump's format: 2.4
    library_version: str  # of NCCL; empty where the dump has none
    groups: tuple[RecordedGroup, ...]
    progress: tuple[GroupProgress, ...]
    calls: tuple[RecordedCall, ...]
    source: str  # the file, or the address, that it was read from
    host: str = ""
    left_out: int = 0  # calls that could not be read, or were more than are read
    dumped_at: Reading[float] = NOT_ASKED  # seconds since 1970, by the clock of its host

    @property
    def pending(self) -> tuple[RecordedCall, ...]:
        """The calls that have not come to their end."""
        return tuple(call for call in self.calls if call.is_pending)


@dataclass(frozen=True, slots=True)
class RasRank:
    """One rank of a communicator and its process, as RAS knows them.

    `rank` counts within the communicator.
    """

    rank: int
    host: str = ""  # an address
    pid: int | None = None
    cuda_device: int | None = None
    nvml_device: int | None = None


@dataclass(frozen=True, slots=True)
class RasCount:
    """Ranks that have launched the same number of one operation. The text names only those that stand out."""

    operation: str  # AllReduce; `collective` where the version counts all kinds as one
    launched: int
    size: int  # how many ranks
    ranks: tuple[int, ...]  # in the communicator; fewer than `size` where the answer does not name all


@dataclass(frozen=True, slots=True)
class RasStatus:
    """Ranks of one communicator that are in the same state, or have the same error."""

    word: str  # INIT, RUNNING, FINALIZE, ABORT, NOCOMM; or an error: `Remote process error`
    size: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RasAbsent:
    """A rank of which RAS has no data about a communicator."""

    rank: int
    unresponsive: Reading[bool] = NOT_ASKED  # its process did not answer RAS
    dead: Reading[bool] = NOT_ASKED  # it has not for 60 seconds
    place: RasRank | None = None


@dataclass(frozen=True, slots=True)
class RasCommunicator:
    """One communicator, as the processes of the job described it to RAS."""

    identity: str  # its hash, in hexadecimal digits
    size: int
    ranks: tuple[RasRank, ...]
    counts: tuple[RasCount, ...]
    statuses: tuple[RasStatus, ...] = ()
    errors: tuple[RasStatus, ...] = ()
    absent: tuple[RasAbsent, ...] = ()
    absent_count: int = 0  # more than `absent` where the answer does not name them


@dataclass(frozen=True, slots=True)
class RasProcess:
    """A process of the job that RAS could not ask."""

    pid: int
    host: str
    gpus: str  # as RAS prints them: `5`, `0,1 (NVML 4,5)`
    dead: bool


@dataclass(frozen=True, slots=True)
class RasLook:
    """One answer of RAS; counts are launches, not completions."""

    at_seconds: float  # since the first look began
    nccl_version: str
    is_complete: bool  # JSON lists every rank; the text only those that stand out
    communicators: tuple[RasCommunicator, ...]
    communicator_count: int
    processes: tuple[RasProcess, ...] = ()  # those that did not answer
    timeouts: int = 0  # while RAS collected this; it may call the job OK all the same
    unasked_process_count: int = 0  # processes that did not answer, also those that are not named


@dataclass(frozen=True, slots=True)
class RasLooks:
    """What one RAS address of a job answered, twice about a second apart."""

    address: str
    looks: tuple[RasLook, ...]


@dataclass(frozen=True, slots=True)
class DebugAnswers:
    """What torch's debug server reported on the ranks: stacks, flight records, waiting counters, by rank."""

    address: str
    records: tuple[FlightRecord, ...]
    stacks: tuple[tuple[int, str], ...]  # as the rank printed them
    waits: tuple[tuple[int, tuple[tuple[str, int], ...]], ...]  # by counter: how many wait in it now
    silent: tuple[int, ...] = ()  # ranks that did not answer it


@dataclass(frozen=True, slots=True)
class JobState:
    """What a job reported about itself on one machine, or on several whose looks were merged."""

    ras: tuple[RasLooks, ...] = ()
    records: tuple[FlightRecord, ...] = ()  # without the calls that lie far back
    notes: tuple[str, ...] = ()  # what was there and could not be read
