"""Ranks that belong on this machine and have no process here: by the launcher, or by a job that one machine alone can run."""

from collections.abc import Sequence

from gpudiag.checks.job.groups import name_ranks
from gpudiag.checks.job.position import Position
from gpudiag.model.job import Job
from gpudiag.model.reading import Missing

_LOOPBACK = ("localhost", "ip6-localhost", "[::1]", "::1", "127.")
# Where rank 0, which serves the store, waits until every rank has come to it (TCPStore's wait_for_workers); later it shows that all came.
_STORE = "_create_c10d_store"


def expected_ranks(job: Job) -> tuple[int, ...] | None:
    """The ranks that should be here; None where nothing says so.

    Where no launcher tells, as for ranks that a script started: all of the job, if its store is at this machine's own address. Ranks
    that have no RANK in their environment are found by other signs, which some of them may lack.
    """
    if job.expected is not None:
        return job.expected
    if isinstance(job.world_size, Missing) or job.machines or job.launcher != "variables":
        return None
    return tuple(range(job.world_size)) if job.master.startswith(_LOOPBACK) else None


def absent_ranks(job: Job) -> tuple[int, ...]:
    """The ranks that should be on this machine and have no process."""
    known = {rank.rank for rank in job.ranks if not isinstance(rank.rank, Missing)}
    expected = expected_ranks(job)
    if expected is None or len(known) < len(job.ranks):
        return ()
    return tuple(rank for rank in expected if rank not in known)


def came_to_rendezvous(waiting: Sequence[Position]) -> bool:
    """Whether rank 0, which serves the store, is past waiting for the other ranks to come to it."""
    inside = _inside(waiting)
    return bool(inside) and _STORE not in inside


def _inside(waiting: Sequence[Position]) -> set[str]:
    server = next((one for one in waiting if one.rank == 0), None)
    return {frame.function for frame in server.call.library} if server is not None else set()


def describe_absence(job: Job, absent: Sequence[int], waiting: Sequence[Position]) -> str:
    """`rank 3 no longer has a process, of 4 ranks that belong here`; how far it came, where those that wait show that."""
    have = "has" if len(absent) == 1 else "have"
    they = "it" if len(absent) == 1 else "they"
    belong = f"of {len(absent) + len(job.ranks)} ranks that belong here"
    if job.expected is None:
        belong += f" (WORLD_SIZE {job.world_size}, MASTER_ADDR {job.master.rpartition(':')[0]})"
        if _STORE in _inside(waiting):
            was = "was" if len(absent) == 1 else "were"
            return f"{name_ranks(absent)} {have} no process, {belong}: {they} {was} never started, or ended before the rendezvous"
        if came_to_rendezvous(waiting):
            return f"{name_ranks(absent)} no longer {have} a process, {belong}: {they} came to the rendezvous, and {have} ended since"
    return f"{name_ranks(absent)} no longer {have} a process, {belong}"
