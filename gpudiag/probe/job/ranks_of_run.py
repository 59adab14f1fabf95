"""The ranks of a job that gpudiag itself started, and quick glances at one of them.

Both are read by guarded children. Every process of such a job has the run's id in its environment, whichever
launcher started it and whoever its parent is by then. Where no launcher set a rank
(torch.multiprocessing.spawn), a family of processes is looked for below the command.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from gpudiag.linux.proc import read_stat
from gpudiag.model.codec import decode, encode
from gpudiag.model.job import Frame, Job
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.probe.guard import GuardedChild, start_guarded
from gpudiag.probe.job.agent import is_of_nodes
from gpudiag.probe.job.find import FoundJob, find_launched_jobs
from gpudiag.probe.job.frames import glance_frames
from gpudiag.probe.job.look import stream_looks
from gpudiag.probe.job.proc import Process, list_processes
from gpudiag.probe.job.py_spy import read_stacks

Emit = Callable[[Any], None]
_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
_DRIVERS = ("/libcuda.so", "/libamdhip64.so")
_GLANCE_SECONDS = 2.5  # py-spy takes 0.1 s, and 1 s on a machine with a load of 80


@dataclass(frozen=True, slots=True)
class OwnRank:
    """A rank of the job: its process, the rank that a launcher gave it, and where it leaves an exception."""

    pid: int
    rank: int | None
    error_file: str
    certain: bool = True  # by its own environment; else it may be a launcher that has started nothing yet


@dataclass(frozen=True, slots=True)
class OwnRanks:
    """The ranks that are on this machine now.

    `expected` is how many there should be, where a launcher sets it.
    """

    ranks: tuple[OwnRank, ...]
    world_size: int | None
    expected: int | None
    agent: int | None = None  # torchrun, where it has started no rank and is to find other nodes first


def start_ranks(command_pid: int, variable: str, run_id: str, *, families: bool) -> GuardedChild:
    """A child that lists the ranks whose environment has the run's id.

    With `families`, those that have no rank are listed too.
    """
    return start_guarded(
        "gpudiag.probe.job.ranks_of_run:stream_ranks", command_pid, variable, run_id, families
    )


def read_ranks(child: GuardedChild) -> OwnRanks | None:
    """What an ended child of `start_ranks` listed; None where it did not answer."""
    for kind, *rest in child.messages:
        if kind == "ranks":
            found, world_size, expected, agent = rest
            return OwnRanks(tuple(OwnRank(*one) for one in found), world_size, expected, agent)
        if kind == "jobs":
            jobs = [decode(Job, one) for one in rest[0]]
            return _of_family(jobs[0]) if jobs else OwnRanks((), None, None)
    return None


def _of_family(job: Job) -> OwnRanks:
    world_size = None if isinstance(job.world_size, Missing) else job.world_size
    known = tuple(
        OwnRank(one.pid, None if isinstance(one.rank, Missing) else one.rank, "", certain=False)
        for one in job.ranks
    )
    expected = None if job.expected is None else len(job.expected)
    return OwnRanks(known, world_size, expected, job.agent.pid if job.agent is not None else None)


def stream_ranks(emit: Emit, command_pid: int, variable: str, run_id: str, families: bool) -> None:
    """Send `("ranks", [[pid, rank, error file], ...], world size, expected, torchrun without ranks)`.

    Without ranks, it sends the family's `("jobs", ...)`.
    """
    processes = list_processes()
    for job in find_launched_jobs(processes):
        own = [one for one in job.ranks if (one.process.environment or {}).get(variable) == run_id]
        if own:
            emit(("ranks", [_row_of(one.process, one.rank) for one in own], _size(job), _expected(job), None))
            return
    if families and command_pid in processes:
        stream_looks(emit, command_pid, None, 0, 0.0)
        return
    agents = (
        one.pid
        for one in processes.values()
        if one.python and (one.pid == command_pid or command_pid in one.ancestors) and is_of_nodes(one)
    )
    emit(("ranks", [], None, None, next(agents, None)))


def _row_of(process: Process, rank: Any) -> list[Any]:
    environment: Mapping[str, str] = process.environment or {}
    return [process.pid, None if isinstance(rank, Missing) else rank, environment.get(_ERROR_FILE, "")]


def _size(job: FoundJob) -> int | None:
    return None if isinstance(job.world_size, Missing) else job.world_size


def _expected(job: FoundJob) -> int | None:
    return None if job.expected is None else len(job.expected)


def start_glance(pid: int) -> GuardedChild:
    """A child that reads where the main thread of a process is."""
    return start_guarded("gpudiag.probe.job.ranks_of_run:stream_glance", pid)


def stream_glance(emit: Emit, pid: int) -> None:
    """Send `("glance", state letter, has a GPU, frames)`, or `("unseen", reason, why)`."""
    state = read_stat(f"{pid}/task/{pid}").state
    # Without a stop where a thread is stopped or sleeps uninterruptibly: py-spy would wait for it.
    read = read_stacks(pid, may_stop=False, timeout_seconds=_GLANCE_SECONDS)
    if isinstance(read, Missing):
        emit(("unseen", read.reason.value, read.detail))
        return
    main = read[0].get(pid)
    frames = glance_frames(pid, main.frames if main is not None else ())
    emit(("glance", state, _has_gpu(pid), [encode(frame) for frame in frames]))


def _has_gpu(pid: int) -> bool:
    """Whether a process has the library of a GPU's driver loaded.

    It is only asked for where its stack was read, as py-spy does.
    """
    with suppress(OSError), open(f"/proc/{pid}/maps") as maps:
        return any(name in line for line in maps for name in _DRIVERS)
    return False


def read_glance(child: GuardedChild) -> tuple[str, bool, tuple[Frame, ...]] | Missing | None:
    """State letter, whether it has a GPU, and frames, of an ended `start_glance`; None without an answer."""
    for kind, *rest in child.messages:
        if kind == "glance":
            return rest[0], rest[1], tuple(decode(Frame, one) for one in rest[2])
        if kind == "unseen":
            return Missing(MissingReason(rest[0]), rest[1])
    return None
