"""Looks at the ranks of running jobs, in a guarded child: `run_looks` starts it, `stream_looks` runs in it.

Every rank is looked at by a thread of its own, first by the kernel and then by py-spy, and each look is sent
as it is made: a rank whose files in /proc do not answer costs only itself.
"""

import os
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from time import monotonic, sleep
from typing import Any

from gpudiag.linux.proc import open_files, read_text
from gpudiag.model.codec import encode
from gpudiag.model.job import ChildSeen, Job, KnownBy, ProcessLook, RankSeen
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.probe.job.agent import look_at_agent
from gpudiag.probe.job.choose import choose_jobs
from gpudiag.probe.job.find import FoundJob, find_known_job, with_later_descendants, with_own_descendants
from gpudiag.probe.job.frames import Sources
from gpudiag.probe.job.kernel import look_at_process
from gpudiag.probe.job.permission import explain_refusal
from gpudiag.probe.job.proc import Process, list_processes
from gpudiag.probe.job.py_spy import read_stacks
from gpudiag.probe.job.stacks import add_stacks
from gpudiag.reference.waits import GROUP_THREADS, is_library

BETWEEN_SECONDS = 1.0  # from the start of one look to the next
_STACK_SECONDS = 5.0  # py-spy takes 0.1 s, and some seconds on two processors with a load of 50
_MOST_AT_ONCE = 32
_CHILDREN_AT_ONCE = (
    4  # of all ranks together: one after the other, the forty of Ray's driver take half a minute
)
_MOST_SOURCES = 400  # lines
_ALIVE = "RSDTtIPK"
_GPU_NODE = re.compile(r"/dev/(nvidia.*\d|kfd|dri/renderD\d+)$")
_DRIVER = re.compile(r"/(lib(?:cuda|amdhip64|hsa-runtime64)\.so[.\d]*)$", re.MULTILINE)
# What a child that does work of its own is held up by, and no worker that waits for its next task.
_OF_ITS_OWN = ("file", "fifo", "device", "lock file")
_HELD_IN = ("flock", "fcntl", "nanosleep", "clock_nanosleep")  # system calls; a locked database sleeps
# A rank in one of these waits for others, and its children are not why.
_NOT_FOR_CHILDREN = ("/torch/distributed/", "_engine_run_backward")


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which jobs are looked at: that of a process, of a Slurm job, all; with none of them, what there is."""

    pid: int | None = None
    slurm_job: str | None = None
    looks: int = 2
    between_seconds: float = BETWEEN_SECONDS


Emit = Callable[[Any], None]


def stream_looks(
    emit: Emit, pid: int | None, slurm_job: str | None, looks: int, between_seconds: float
) -> None:
    """Send the jobs that are wanted, then each look at each process of theirs, then source lines."""
    started = monotonic()
    processes = list_processes()
    chosen = choose_jobs(processes, pid, slurm_job)
    if chosen.refusal is not None:
        emit(("refused", *chosen.refusal))
    hidden = sum(process.python and not process.is_readable for process in processes.values())
    _stream(emit, chosen.jobs, hidden, looks, between_seconds, started)


def stream_looks_at(emit: Emit, pids: Sequence[tuple[int, int]], world_size: int, looks: int) -> None:
    """As `stream_looks`, for the job of ranks whose processes are known: (rank, pid) of each."""
    started = monotonic()
    found = find_known_job(list_processes(), dict(pids), world_size)
    _stream(emit, [found] if found.ranks else [], 0, looks, BETWEEN_SECONDS, started)


def _stream(
    emit: Emit, found: Sequence[FoundJob], hidden: int, looks: int, between_seconds: float, started: float
) -> None:
    found = [with_own_descendants(job) for job in found]
    emit(("jobs", [encode(_with_agent(_empty_job(job), job)) for job in found], hidden))
    if not found:
        return
    kept: dict[int, set[tuple[str, int]]] = {}
    stacks_of_children: set[int] = set()
    pool, children = ThreadPoolExecutor(_MOST_AT_ONCE), ThreadPoolExecutor(_CHILDREN_AT_ONCE)
    for number in range(looks):
        sleep(max(0.0, number * between_seconds - (monotonic() - started)))
        found = _with_children_now(emit, found)
        tasks = []
        ranks = [(rank.process, rank.descendants) for job in found for rank in job.ranks]
        servers = {server.pid: server for job in found for server in job.servers}
        for process, descendants in (*ranks, *((server, ()) for server in servers.values())):
            tasks.append(
                pool.submit(
                    _look_at_rank,
                    emit,
                    number,
                    process,
                    descendants,
                    started,
                    kept,
                    stacks_of_children,
                    number == looks - 1,
                    children,
                )
            )
        wait(tasks)
        for task in tasks:
            task.result()
    _send_sources(emit, kept)


def _with_children_now(emit: Emit, found: Sequence[FoundJob]) -> list[FoundJob]:
    """The jobs, with what their ranks have started since they were listed, which is sent."""
    processes = list_processes()
    later = [with_later_descendants(job, processes) for job in found]
    for job, now in zip(found, later, strict=True):
        for rank, seen in zip(job.ranks, now.ranks, strict=True):
            new = [_child(one) for one in seen.descendants if one not in rank.descendants]
            if new:
                emit(("children", rank.process.pid, [encode(one) for one in new]))
    return later


def _look_at_rank(
    emit: Emit,
    number: int,
    process: Process,
    descendants: Sequence[Process],
    started: float,
    kept: dict[int, set[tuple[str, int]]],
    deep: set[int],
    is_last: bool,
    pool: ThreadPoolExecutor,
) -> None:
    look = _look(process, started, with_stacks=True)
    emit(("look", process.pid, 0, number, encode(look)))
    kept.setdefault(process.pid, set()).update(_lines_of(look))
    main = look.main
    files = [frame.file + frame.function for frame in main.frames] if main else []
    if not any(mark in file for mark in _NOT_FOR_CHILDREN for file in files):
        deep.add(process.pid)

    def look_at_child(child: Process) -> tuple[Process, ProcessLook]:
        is_read = is_last or child.state == "R"  # two stacks of one that computes show an endless loop
        return child, _look(
            child,
            started,
            with_stacks=is_read and child.python,
            only_if_alone=process.pid not in deep,
        )

    for child, seen in pool.map(look_at_child, descendants):
        emit(("look", child.pid, process.pid, number, encode(seen)))
        kept.setdefault(child.pid, set()).update(_lines_of(seen))


def _look(process: Process, started: float, *, with_stacks: bool, only_if_alone: bool = False) -> ProcessLook:
    at_seconds = round(monotonic() - started, 3)
    look = look_at_process(process.pid, at_seconds)
    if look is None:
        return ProcessLook(at_seconds, process.pid, "X", 0.0)
    if not with_stacks or look.state in "ZX" or (only_if_alone and not _may_work_alone(look)):
        return look
    states = {thread.state for thread in look.threads}
    read = read_stacks(
        process.pid, may_stop=not states & set("DTt") and not look.frozen, timeout_seconds=_STACK_SECONDS
    )
    if isinstance(read, Missing):
        refused = read.reason is MissingReason.NO_PERMISSION
        return replace(look, stacks=explain_refusal(process.pid, read.detail) if refused else read)
    return add_stacks(look, *read)


def _may_work_alone(look: ProcessLook) -> bool:
    """Whether a child may do more than its rank asks of it, by the kernel: its stack is worth reading.

    An idle worker waits for a pipe, a queue or a connection, and has no threads of a process group.
    """
    main = look.main
    if main is None or any(one.name.startswith(GROUP_THREADS) for one in look.threads):
        return main is not None
    kind = main.awaited.kind if main.awaited is not None else ""
    return main.state in "DTt" or kind in _OF_ITS_OWN or main.syscall in _HELD_IN


def _lines_of(look: ProcessLook) -> set[tuple[str, int]]:
    """The lines of the user's own files, and the innermost line, of each thread with a stack."""
    frames = [
        frame
        for thread in look.threads
        for place, frame in enumerate(thread.frames)
        if place == 0 or not is_library(frame.file)
    ]
    return {(frame.file, frame.line) for frame in frames if not frame.file.startswith("<")}


def _send_sources(emit: Emit, kept: Mapping[int, set[tuple[str, int]]]) -> None:
    sources, sent = Sources(), 0
    done: set[tuple[str, int]] = set()
    for pid, lines in kept.items():
        for file, number in sorted(lines - done):
            line = sources.line(pid, file, number)
            done.add((file, number))
            if line is not None and sent < _MOST_SOURCES:
                emit(("source", file, number, line.text, list(line.inside), line.polls))
                sent += 1


def _with_agent(job: Job, found: FoundJob) -> Job:
    """The job with its torchrun, where that has no ranks."""
    if found.ranks or found.launcher_process is None:
        return job
    return replace(job, agent=look_at_agent(found.launcher_process, list_processes(), _uptime()))


def name_job(found: FoundJob) -> str:
    """`torchrun 18076: train.py`, for people."""
    launcher = found.launcher_process
    first = found.ranks[0].process if found.ranks else None
    # A server's script is in the command line of the topmost: its workers may be renamed.
    named = [one for one in (*found.servers[::-1], first, launcher) if one is not None]
    words = [word for one in named for word in one.words]
    script = next(
        (os.path.basename(word) for word in words if word.endswith(".py")),
        named[0].command[:60] if named else "?",
    )
    if launcher is not None:
        return f"{found.launcher} {launcher.pid}: {script}"
    if len(found.ranks) > 1:
        return f"{found.launcher}: {script}"
    return f"pid {found.ranks[0].process.pid}: {script}"


def _empty_job(found: FoundJob) -> Job:
    uptime = _uptime()
    launcher = found.launcher_process
    return Job(
        name_job(found),
        socket.gethostname(),
        found.launcher,
        launcher.pid if launcher else None,
        found.world_size,
        found.expected,
        tuple(
            replace(
                _empty_rank(rank.process, uptime),
                rank=rank.rank,
                local_rank=rank.local_rank,
                known_by=rank.known_by,
                gpus=_gpus(rank.process.pid),
                driver=_driver(rank.process.pid),
                children=tuple(map(_child, rank.descendants)),
            )
            for rank in found.ranks
        ),
        found.master,
        found.run,
        found.slurm_job,
        servers=tuple(_empty_rank(one, uptime) for one in found.servers),
    )


def _child(process: Process) -> ChildSeen:
    return ChildSeen(process.pid, process.parent_pid, process.command)


def _empty_rank(process: Process, uptime: float) -> RankSeen:
    nothing = Missing(MissingReason.NOT_SUPPORTED, "it is no rank")
    ago = max(0.0, round(uptime - process.started_seconds, 1))
    return RankSeen(process.pid, nothing, nothing, KnownBy.NOTHING, process.command, ago, str(process.uid))


def _uptime() -> float:
    return float(read_text("/proc/uptime").split()[0])


def _gpus(pid: int) -> tuple[str, ...]:
    return tuple(sorted({path for path in open_files(pid).values() if _GPU_NODE.match(path)}))


def _driver(pid: int) -> str:
    """The library of a GPU's driver that a process has loaded, by its name.

    It is empty where it has none, or it may not be read.
    """
    try:
        found = _DRIVER.search(read_text(f"/proc/{pid}/maps"))
    except OSError:
        return ""
    return found.group(1) if found else ""
