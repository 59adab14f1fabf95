"""Ranks that belong on this machine and have no process here: by the launcher, or by a job that one machine alone can run."""

from collections.abc import Sequence

from gpudiag.checks.job.groups import name_ranks
from gpudiag.checks.job.position import Position
from gpudiag.model.job import Job
from gpudiag.model.reading import Missing

_LOOPBACK = ("localhost", "ip6-localhost", "::1", "127.")
# Where torch waits until every rank of the job has come to the store for the first time; what it does later shows that all came.
_FIRST_MEETING = frozenset(
    ("rendezvous", "_create_c10d_store", "_env_rendezvous_handler", "_tcp_rendezvous_handler")
)
_LATER = frozenset(("_new_process_group_helper", "_store_based_barrier"))


def expected_ranks(job: Job) -> tuple[int, ...] | None:
    """The ranks that should be here; None where nothing says so.

    Where no launcher tells, as for ranks that a script started: all of the job, if its store is at this machine's own address.
    """
    if job.expected is not None:
        return job.expected
    alone = job.master.startswith(_LOOPBACK) and not job.machines and not isinstance(job.world_size, Missing)
    return tuple(range(job.world_size)) if alone and isinstance(job.world_size, int) else None


def absent_ranks(job: Job) -> tuple[int, ...]:
    """The ranks that should be on this machine and have no process."""
    known = {rank.rank for rank in job.ranks if not isinstance(rank.rank, Missing)}
    expected = expected_ranks(job)
    if expected is None or len(known) < len(job.ranks):
        return ()
    return tuple(rank for rank in expected if rank not in known)


def describe_absence(job: Job, absent: Sequence[int], waiting: Sequence[Position]) -> str:
    """`rank 3 no longer has a process, of 4 ranks that belong here`; how far it came, where those that wait show that."""
    have = "has" if len(absent) == 1 else "have"
    they = "it" if len(absent) == 1 else "they"
    belong = f"of {len(absent) + len(job.ranks)} ranks that belong here"
    if job.expected is None:
        belong += f" (WORLD_SIZE {job.world_size}, MASTER_ADDR {job.master.rpartition(':')[0]})"
        inside = [{frame.function for frame in one.call.library} for one in waiting]
        if inside and all(one & _FIRST_MEETING for one in inside):
            was = "was" if len(absent) == 1 else "were"
            return f"{name_ranks(absent)} {have} no process, {belong}: {they} {was} never started, or ended before the rendezvous"
        if any(one & _LATER for one in inside):
            return f"{name_ranks(absent)} no longer {have} a process, {belong}: {they} came to the rendezvous, and {have} ended since"
    return f"{name_ranks(absent)} no longer {have} a process, {belong}"
