"""This machine's jobs of several processes, listed by a guarded child for whoever watches them all."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpudiag.model.reading import Missing
from gpudiag.probe.guard import GuardedChild, start_guarded
from gpudiag.probe.job.choose import choose_jobs
from gpudiag.probe.job.find import FoundJob
from gpudiag.probe.job.look import name_job
from gpudiag.probe.job.proc import list_processes
from gpudiag.probe.job.ranks_of_run import OwnRank, OwnRanks


@dataclass(frozen=True, slots=True)
class NodeJob:
    """A job of two ranks or more, or one whose other ranks are elsewhere.

    `key` stays as long as its launcher lives.
    """

    key: str
    name: str
    pid: int  # of its launcher, or of its first rank
    ranks: OwnRanks


@dataclass(frozen=True, slots=True)
class NodeJobs:
    """The jobs, and how many Python processes of other users may not be looked into."""

    jobs: tuple[NodeJob, ...]
    hidden: int


def start_node_jobs() -> GuardedChild:
    """A child that lists this machine's jobs of several processes."""
    return start_guarded("gpudiag.probe.job.node_jobs:stream_node_jobs")


def stream_node_jobs(emit: Callable[[Any], None]) -> None:
    """Send `("jobs", [[key, name, pid, [[pid, rank], ...], world size, expected], ...], hidden)`."""
    processes = list_processes()
    jobs = [
        job
        for job in choose_jobs(processes, None, None).jobs
        if job.ranks and (len(job.ranks) > 1 or (_number(job.world_size) or 1) > 1)
    ]
    emit(
        (
            "jobs",
            [_document(job) for job in jobs],
            sum(one.python and not one.is_readable for one in processes.values()),
        )
    )


def read_node_jobs(child: GuardedChild) -> NodeJobs | None:
    """What an ended child of `start_node_jobs` listed; None where it did not answer."""
    for kind, *rest in child.messages:
        if kind == "jobs":
            jobs = tuple(
                NodeJob(
                    key,
                    name,
                    head,
                    OwnRanks(tuple(OwnRank(pid, rank, "") for pid, rank in ranks), world_size, expected),
                )
                for key, name, head, ranks, world_size, expected in rest[0]
            )
            return NodeJobs(jobs, rest[1])
    return None


def _document(job: FoundJob) -> list[Any]:
    head = job.launcher_process or job.ranks[0].process
    return [
        f"{head.pid}-{head.started_seconds:.2f}",
        name_job(job),
        head.pid,
        [[one.process.pid, _number(one.rank)] for one in job.ranks],
        _number(job.world_size),
        None if job.expected is None else len(job.expected),
    ]


def _number(reading: Any) -> int | None:
    return None if isinstance(reading, Missing) else int(reading)
