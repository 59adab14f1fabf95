"""Which jobs are looked at: that of the process that was named, of a Slurm job, or all that are here."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gpudiag.linux.proc import read_text
from gpudiag.model.job import ALONE
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.probe.job.agent import waits_for_nodes
from gpudiag.probe.job.find import (
    FoundJob,
    FoundRank,
    find_descendants,
    find_families,
    find_family,
    find_launched_jobs,
)
from gpudiag.probe.job.kernel import read_system_call
from gpudiag.probe.job.permission import explain_refusal
from gpudiag.probe.job.proc import Process
from gpudiag.probe.job.py_spy import RawFrame, RawThread, read_stacks
from gpudiag.probe.job.servers import find_served_jobs
from gpudiag.probe.job.stores import runs_process_group

_STACK_SECONDS = 5.0  # as for a look
_TRIES = 3
_INIT = 1
_WAITS_FOR_CHILD = ("wait4", "waitid")  # system calls
# What starts a job as the first process of a container; any other process 1 is the machine's own, and started
# everything.
_FIRST_PROCESSES = frozenset(
    ("sh", "bash", "dash", "zsh", "tini", "dumb-init", "docker-init", "catatonit", "mpirun", "mpiexec")
)
_OTHER_PID = (
    "name the job's launcher or one of its ranks; or nothing, where there is one job here: `gpudiag hang`"
)


@dataclass(frozen=True, slots=True)
class Chosen:
    """The jobs; or, without one, why the process that was named is of none, and what to do."""

    jobs: Sequence[FoundJob]
    refusal: tuple[str, str] | None = None


def choose_jobs(processes: Mapping[int, Process], pid: int | None, slurm_job: str | None) -> Chosen:
    """The jobs that are wanted; with neither pid nor Slurm job all that are here."""
    launched = [_with_joined_children(job, processes) for job in find_launched_jobs(processes)]
    if slurm_job is not None:
        return Chosen([job for job in launched if job.slurm_job == slurm_job])
    if pid is not None:
        return _choose_by_pid(pid, launched, processes)
    known = [*launched, *_find_served(launched, processes)]
    taken = frozenset(one for job in known for one in job.pids)
    families = find_families(processes, taken, _read_main, _uses_torch)
    return Chosen([*known, *(job for job in families if job.ranks or waits_for_nodes(job))])


def _with_joined_children(job: FoundJob, processes: Mapping[int, Process]) -> FoundJob:
    """The job, whose rank is the child that trains where its parent does nothing but wait for it.

    A sweep that starts one trial after the other has all variables of the trial, and no process group.
    """
    return replace(job, ranks=tuple(_joined_child(rank, processes) or rank for rank in job.ranks))


def _joined_child(rank: FoundRank, processes: Mapping[int, Process]) -> FoundRank | None:
    if not any(one.python for one in rank.descendants) or runs_process_group(rank.process.pid):
        return None
    pid = rank.process.pid
    waits = read_system_call(pid, pid, f"/proc/{pid}/task/{pid}")
    if waits is None or waits.name not in _WAITS_FOR_CHILD:
        return None
    train = {one.pid: one for one in rank.descendants if one.python and runs_process_group(one.pid)}
    tops = [one for one in train.values() if not train.keys() & {*one.ancestors}]
    if len(tops) != 1:
        return None
    return replace(rank, process=tops[0], descendants=find_descendants(tops[0], processes))


def _find_served(
    launched: Sequence[FoundJob], processes: Mapping[int, Process], near: Process | None = None
) -> list[FoundJob]:
    # Not what started the ranks: a shell may have started an engine too.
    ranks = frozenset(rank.process.pid for job in launched for rank in job.ranks)
    return find_served_jobs(processes, ranks, _read_main, _uses_torch, near)


def _choose_by_pid(pid: int, launched: Sequence[FoundJob], processes: Mapping[int, Process]) -> Chosen:
    named = processes.get(pid)
    if named is None:
        words = f"there is no process {pid} here: it has ended, or is of another machine or container"
        own = f"process {pid} is gpudiag's own"
        return Chosen((), (own if os.path.exists(f"/proc/{pid}") else words, _OTHER_PID))
    followed = named.parent_pid if named.state == "Z" else pid  # a dead rank's launcher may have others
    fitting = _fitting(followed, launched, processes)
    if not fitting and named.name == "srun":  # its ranks are slurmstepd's children
        slurm_job = (named.environment or {}).get("SLURM_JOB_ID", "")
        fitting = [job for job in launched if slurm_job and job.slurm_job == slurm_job]
    fitting = fitting or _fitting(
        followed, _find_served(launched, processes, processes.get(followed, named)), processes
    )
    if named.state == "Z":  # what started a launcher that has ended may have started other jobs
        fitting = [job for job in fitting if followed in job.pids]
    if fitting:
        return Chosen(fitting)
    if named.state == "Z":
        words = f"process {pid} ({named.name}) has ended, and its parent has not reaped it (a zombie)"
        return Chosen((), (words, _OTHER_PID))
    top = _top_python(named, processes)
    refusal = None if top.python else _refuse(top)
    return Chosen((), refusal) if refusal else Chosen([find_family(top, processes, _read_main)])


def _fitting(pid: int, jobs: Sequence[FoundJob], processes: Mapping[int, Process]) -> list[FoundJob]:
    """The jobs that a process belongs to, or has started.

    To that of a server belongs what it started that has no job and no script of its own, as a sweep's trials
    have; they may run the server's own script by another command.
    """
    named = processes.get(pid)
    above = {*named.ancestors} if named else set()
    words = {*named.words[1:]} if named else set()
    has_script = any(word.endswith(".py") for word in words)
    own = [job for job in jobs if pid in job.pids or _is_above(pid, job, processes)]
    return own or [
        job
        for job in jobs
        if any(one.pid in above and (not has_script or words <= {*one.words}) for one in job.servers)
    ]


def _refuse(process: Process) -> tuple[str, str] | None:
    """Why a process that is no Python's by its program is of no job.

    It is None for one that runs a Python of its own.
    """
    who = f"process {process.pid} ({process.name})"
    read = read_stacks(process.pid, may_stop=False, timeout_seconds=_STACK_SECONDS)
    if not isinstance(read, Missing) or read.reason in (MissingReason.TIMED_OUT, MissingReason.ERROR):
        return None
    if read.reason is MissingReason.NO_PERMISSION:
        words = (
            f"{who} is no Python program by its command line, no rank is below"
            " it, and it may not be looked into"
        )
        return words, f"{explain_refusal(process.pid, read.detail).detail}; or {_OTHER_PID}"
    return f"{who} runs no Python, and no rank of a job is below it", _OTHER_PID


def _is_above(pid: int, job: FoundJob, processes: Mapping[int, Process]) -> bool:
    return any(_is_below(processes[rank.process.pid], pid, processes) for rank in job.ranks)


def _is_below(process: Process, pid: int, processes: Mapping[int, Process]) -> bool:
    """Whether a process was started by another, or by what that one started."""
    if pid != _INIT:
        return pid in process.ancestors
    first = processes.get(_INIT)
    if first is None or not (first.python or first.name in _FIRST_PROCESSES):
        return False
    top = processes.get(process.ancestors[-1]) if process.ancestors else process
    return top is not None and top.parent_pid == _INIT


def _top_python(process: Process, processes: Mapping[int, Process]) -> Process:
    """The first Python process below a shell or a wrapper.

    For a process that a join waits for, it is the one that joins.
    """
    if not process.python:
        below = [one for one in processes.values() if one.python and _is_below(one, process.pid, processes)]
        return min(below, key=lambda one: (len(one.ancestors), one.pid)) if below else process
    parent = processes.get(process.parent_pid)
    own = find_family(process, processes, _read_main)
    if parent is not None and parent.python and own.launcher == ALONE:
        family = find_family(parent, processes, _read_main)
        if any(rank.process.pid == process.pid for rank in family.ranks) and _trains_together(family):
            return parent
    return process


def _trains_together(family: FoundJob) -> bool:
    """Whether processes that are joined are ranks of one job, and no trials of a sweep.

    They have numbers, or one has a process group or is about to join one.
    """
    pids = [one.process.pid for one in family.ranks]
    return (
        any(not isinstance(one.rank, Missing) for one in family.ranks)
        or any(map(runs_process_group, pids))
        or any("/torch/distributed/" in frame.file for pid in pids for frame in _read_main(pid))
    )


def _read_main(pid: int) -> Sequence[RawFrame]:
    """The main thread's frames, tried again where py-spy is late: they distinguish whole jobs."""
    for _ in range(_TRIES):
        read = read_stacks(pid, may_stop=False, timeout_seconds=_STACK_SECONDS)
        if not isinstance(read, Missing):
            return _frames_of(read[0].get(pid))
        if read.reason is not MissingReason.TIMED_OUT:
            break
    return ()


def _frames_of(thread: RawThread | None) -> Sequence[RawFrame]:
    return thread.frames if thread is not None else ()


def _uses_torch(pid: int) -> bool:
    try:
        return "libtorch" in read_text(f"/proc/{pid}/maps")
    except OSError:
        return False
