"""The nouns of a job that is already running, seen from outside: its ranks, and looks at each of them.

Who uses what:

- `gpudiag.probe.job.find.find_jobs` finds jobs on this machine, `gpudiag.probe.job.look.look_at` adds a
  `ProcessLook` to every rank; both only read. What another source reports on a rank (NCCL RAS, a flight
  recorder) is `CollectiveCount`.
- `gpudiag.checks.job.verdict.judge_job` turns a `Job` of at least two looks into findings, and is pure.
- `gpudiag.runs.hang.watch_job` is both in one, for whoever has a job's pid: `gpudiag hang`, `gpudiag run`.

A job with its looks is plain data: `codec.to_document(job)` and `documents.from_document` write and read it,
which is how recorded looks become tests.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from gpudiag.compat import StrEnum
from gpudiag.model.finding import Finding, Outcome
from gpudiag.model.job_agent import AgentSeen
from gpudiag.model.job_state import JobState
from gpudiag.model.published import HostAddresses
from gpudiag.model.reading import NOT_ASKED, Reading

# in the detail of a lock file that nobody holds, and that keeps others out by being there
REMOVABLE = "its owner is gone"
# A socket without a path: one of a pair, of which a process may hold both ends.
NAMELESS_SOCKET = "a Unix socket"


class KnownBy(StrEnum):
    """How it is known which rank a process is."""

    ENVIRONMENT = "environment"  # RANK, as torchrun and many others set it
    LAUNCHER = "launcher"  # OMPI_*, PMI_*, SLURM_*, and the like
    STACK = "stack"  # a variable or the process group in its stack, as torch.multiprocessing.spawn leaves it
    NOTHING = "nothing"  # it belongs to the job, and nothing shows which rank it is


@dataclass(frozen=True, slots=True)
class TensorSeen:
    """A tensor that a Python variable holds, read from the rank's memory."""

    shape: tuple[int, ...]
    dtype: str  # `float32`; `type 7` where torch's number has no word


@dataclass(frozen=True, slots=True)
class GroupSeen:
    """A process group that a call was given, read from the rank's memory."""

    size: int
    rank: int  # of this process in the group
    # torch's own, the same on all of its ranks; `0` is the default group; empty where it could not be read
    name: str = ""
    ranks: tuple[int, ...] = ()  # of the job, that belong to it; empty where they could not be read
    calls: int | None = None  # that this process has begun in it, of gloo; None where it is unknown


@dataclass(frozen=True, slots=True)
class Frame:
    """One Python frame; `file` is the whole path as the interpreter knows it."""

    file: str
    function: str  # with its class, where py-spy shows it
    line: int
    text: str = ""  # of the source's line, without what surrounds it
    inside: tuple[str, ...] = ()  # statements around the line that may explain it: `if rank == 0: (line 10)`
    variables: tuple[tuple[str, str], ...] = ()  # numbers, words and names only: what distinguishes ranks
    tensors: tuple[tuple[str, TensorSeen], ...] = ()  # by variable
    group: GroupSeen | None = None  # of a call of torch.distributed
    polls: str = ""  # the loop around the line that does nothing but ask and wait: `while True (line 32)`
    # Until a call of torch.distributed gives up: its `timeout`, from memory; None where it has none.
    timeout_seconds: float | None = None
    mark: str = (
        ""  # of its variables' addresses, where it is the user's: another one where it ran between two looks
    )

    @property
    def place(self) -> str:
        """`data.py:6`."""
        return f"{self.file.rpartition('/')[2]}:{self.line}"


@dataclass(frozen=True, slots=True)
class Awaited:
    """What a thread's system call waits for: a file, FIFO, socket, process, lock.

    `kind` is file, fifo, pipe, socket, listener, terminal, process, device, lock, lock file or other.
    """

    kind: str
    name: str  # the path, `10.0.0.2:443`, `pid 12 (sleep 100)`
    detail: str = ""  # the file system, who holds the lock, who is at the other end
    holders: tuple[int, ...] = ()  # the processes that hold the lock, where they are known


@dataclass(frozen=True, slots=True)
class ThreadLook:
    """One thread at one moment, by the kernel and by its Python stack."""

    tid: int
    name: str
    state: str  # R, S, D, T (stopped by a signal), t (by a debugger), Z, as in ps
    cpu_seconds: float
    waits_in: str = ""  # the kernel's function: `futex_do_wait`
    syscall: str = ""  # its name; empty in user mode or where it may not be read
    awaited: Awaited | None = None
    last_ran_seconds_ago: Reading[float] = NOT_ASKED  # when it last had a processor
    # Until its sleep ends; None where it does not sleep, or only the kernel knows for how long.
    wakes_in_seconds: float | None = None
    frames: tuple[
        Frame, ...
    ] = ()  # innermost first; empty where the thread runs no Python, or could not be read
    native: tuple[str, ...] = ()  # C functions, innermost first, where they were asked for
    switches: int = 0  # how often it was given a processor
    holds_gil: bool | None = None  # None where that was not read
    # of all variables' addresses: another one where the frames ran between two looks; empty where it was not
    # read
    mark: str = ""
    started_by: str = ""  # of one without a line of the user's: `async_save at job.py:14 in Keeper.save`


@dataclass(frozen=True, slots=True)
class QuotaLook:
    """A control group that may not use all processors, and what its quota has done since it was made."""

    file: str  # that sets it: `/sys/fs/cgroup/kubepods.slice/cpu.max`, or `cpu.cfs_quota_us` of version 1
    processors: float  # that it may use at once
    periods: int  # in which one of its processes wanted to run
    throttled_periods: int  # in which its processes had to wait, as the quota was used up
    throttled_seconds: float  # of all of its processors together


@dataclass(frozen=True, slots=True)
class ProcessLook:
    """One process at one moment, `at_seconds` since the first look began."""

    at_seconds: float
    pid: int
    state: str  # of the main thread; Z dead and not yet reaped; X gone
    cpu_seconds: float  # of all threads
    read_bytes: Reading[int] = NOT_ASKED  # by read(2) and its kin, network included
    written_bytes: Reading[int] = NOT_ASKED
    threads: tuple[ThreadLook, ...] = ()  # the main one first
    stacks: Reading[str] = NOT_ASKED  # what read the Python stacks, or why they are not there
    frozen: bool = False  # by its control group
    traced_by: str = ""  # a debugger that holds it: `pid 12 (gdb)`
    stopped_seconds: float = 0.0  # for which it was stopped to read its C functions
    quotas: tuple[QuotaLook, ...] = ()  # of its control group and of those above it, innermost first

    @property
    def main(self) -> ThreadLook | None:
        """The main thread."""
        return next((one for one in self.threads if one.tid == self.pid), None)


@dataclass(frozen=True, slots=True)
class ChildSeen:
    """A process that a rank started: a loader's worker, a program, a compiler."""

    pid: int
    parent_pid: int
    command: str  # secrets masked
    looks: tuple[ProcessLook, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuLook:
    """What NVML shows of the GPU that a rank uses, at one moment, `at_seconds` since the first look began.

    Utilization is the share of time in which a kernel ran, and a kernel that only waits runs. Activities
    (GPM) are shares of what the parts could do; traffic counts both ways.
    """

    at_seconds: float
    gpu: str  # its uuid, or its place on the machine
    utilization_percent: Reading[int] = NOT_ASKED
    process_utilization_percent: Reading[int] = NOT_ASKED  # of this rank's process alone
    processes: Reading[int] = NOT_ASKED  # that have a context on it
    power_draw_watts: Reading[float] = NOT_ASKED
    power_limit_watts: Reading[float] = NOT_ASKED
    sm_clock_mhz: Reading[int] = NOT_ASKED
    sm_activity_percent: Reading[float] = NOT_ASKED
    tensor_activity_percent: Reading[float] = NOT_ASKED
    memory_activity_percent: Reading[float] = NOT_ASKED
    pcie_bytes_per_second: Reading[float] = NOT_ASKED
    nvlink_bytes_per_second: Reading[float] = NOT_ASKED


@dataclass(frozen=True, slots=True)
class CollectiveCount:
    """How far a rank is in one communicator, by NCCL RAS or a flight recorder.

    Counts are launches, not completions.
    """

    group: str
    operation: str
    count: int
    source: str  # `NCCL RAS`, `flight recorder`
    detail: str = ""  # sizes, state


@dataclass(frozen=True, slots=True)
class RankSeen:
    """One process of the job."""

    pid: int
    rank: Reading[int]
    local_rank: Reading[int]
    known_by: KnownBy
    command: str  # secrets masked
    started_seconds_ago: float
    user: str = ""
    gpus: tuple[str, ...] = ()  # device nodes that it has open
    looks: tuple[ProcessLook, ...] = ()
    children: tuple[ChildSeen, ...] = ()
    counts: tuple[CollectiveCount, ...] = ()
    host: str = ""  # where it is not the job's: in a job whose machines were put together
    gpu_looks: tuple[GpuLook, ...] = ()
    driver: str = ""  # the GPU driver's library that it has loaded: `libcuda.so.1`, `libamdhip64.so.6`
    addresses: HostAddresses | None = (
        None  # where it waits to meet the others: what its host has and publishes
    )

    @property
    def first(self) -> ProcessLook:
        """The first look."""
        return self.looks[0]

    @property
    def last(self) -> ProcessLook:
        """The last look."""
        return self.looks[-1]


@dataclass(frozen=True, slots=True)
class Job:
    """The ranks of one job that are on this machine.

    `expected`: the ranks that should be here, from the launcher's variables of those that are; None where
    unknown.
    """

    SCHEMA: ClassVar[str] = "gpudiag.job/1"

    name: str  # `torchrun 18076: train.py`, for people
    host: str
    launcher: str  # torchrun, mpirun, srun, spawn, variables, server, ray
    launcher_pid: int | None
    world_size: Reading[int]
    expected: tuple[int, ...] | None
    ranks: tuple[RankSeen, ...]
    master: str = ""  # `127.0.0.1:29500`
    run: str = ""  # what all ranks of the run have alike
    slurm_job: str = ""
    state: JobState | None = None  # what it reports about itself: NCCL RAS, flight recorder, debug server
    machines: tuple[tuple[str, tuple[int, ...]], ...] = ()  # of several, which ranks should be on which
    agent: AgentSeen | None = None  # torchrun, where it has no rank
    servers: tuple[
        RankSeen, ...
    ] = ()  # processes that give the ranks their work, and are none: an engine, its HTTP server

    def host_of(self, rank: int) -> str:
        """The machine that this rank is on, or should be on."""
        for seen in self.ranks:
            if seen.rank == rank and seen.host:
                return seen.host
        return next((host for host, ranks in self.machines if rank in ranks), self.host)


ALONE = "python"  # the launcher of a process that is no rank by any variable, and joins none
JOINED = "multiprocessing"  # the launcher of processes that the one which started them joins
SERVER = "server"  # the kind of a place that is a server's


@dataclass(frozen=True, slots=True)
class Place:
    """Where some ranks are, and what they do there, in words; for people and programs."""

    ranks: tuple[int, ...]
    kind: str  # ranks, loader, file, lock, network, sleep, python, stopped, gone, work, server ...
    words: str
    where: str  # `data.py:6 in load_batch`
    stack: tuple[str, ...] = ()  # the user's frames, innermost first
    since_seconds: Reading[float] = NOT_ASKED
    moves: bool = False
    busy: bool = (
        False  # it takes processor time, and nothing else of it moves: it computes, or waits for a GPU
    )
    pids: tuple[int, ...] = ()  # of those processes whose rank is unknown, or that are none
    operation: str = (
        ""  # the collective that they are in: all_reduce, barrier ...; empty: in none, or not known
    )


@dataclass(frozen=True, slots=True)
class JobVerdict:
    """What the looks at one job show."""

    name: str
    outcome: Outcome
    headline: str  # one sentence
    findings: tuple[Finding, ...]
    places: tuple[Place, ...]
    ruled_out: tuple[str, ...]
    unseen: tuple[str, ...]  # what could not be looked at, and what to do about it
    job: Job

    @property
    def places_of_ranks(self) -> tuple[Place, ...]:
        """The places but those of servers, which are no ranks."""
        return tuple(place for place in self.places if place.kind != SERVER)


@dataclass(frozen=True, slots=True)
class HangMachine:
    """One machine whose look was put together with others; `reason`: why there is none, or no job in it."""

    name: str
    place: str  # the file, or `rank 8`
    outcome: Outcome
    reason: str = ""


@dataclass(frozen=True, slots=True)
class HangReport:
    """`gpudiag.hang/1`: the verdict on each job that was looked at, on this machine or on several."""

    SCHEMA: ClassVar[str] = "gpudiag.hang/1"

    outcome: Outcome
    host: str
    taken_at: str  # ISO 8601, UTC
    seconds: float  # from the command to the verdict
    jobs: tuple[JobVerdict, ...]
    machine: tuple[Finding, ...] = ()  # of the instant checks and the kernel log
    notes: tuple[str, ...] = field(default=())  # what the look itself did or could not do
    machines: tuple[HangMachine, ...] = ()  # those whose looks were put together; none for a look at one
