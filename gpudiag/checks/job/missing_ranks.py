"""Ranks without a process: by the launcher, by a job of one machine, or because they never joined the others.

Launchers that start all ranks of a machine record them. Ranks started by hand are WORLD_SIZE in number, all
here if their master is at the loopback address.
"""

from collections.abc import Sequence

from gpudiag.checks.job import kinds
from gpudiag.checks.job.facts import facts_of
from gpudiag.checks.job.groups import Group, describe_seconds, is_are
from gpudiag.checks.job.hang_limits import HangLimits
from gpudiag.checks.job.position import Position
from gpudiag.checks.job.subgroups import JOINS
from gpudiag.checks.job.waiters import OTHER_MACHINES, Waiters, describe_call
from gpudiag.model.evidence import Evidence, HostSubject, about_ranks
from gpudiag.model.finding import Finding
from gpudiag.model.job import Job
from gpudiag.model.number_ranges import name_ranks
from gpudiag.model.reading import Missing

_LOOPBACK = ("localhost", "ip6-localhost", "[::1]", "::1", "127.")
# Where rank 0, which serves the store, waits until every rank has come to it (TCPStore's wait_for_workers);
# later it shows that all came.
_STORE = "_create_c10d_store"
# Where all ranks of the job meet for the first time: a rank that is missing there has not joined.
_FIRST_MEETINGS = JOINS - {"new_group"}
_STARTS_SECONDS = 20.0  # of imports: a rank that was started longer ago has come to where it waits


def expected_ranks(job: Job) -> tuple[int, ...] | None:
    """The ranks that should be here; None where that is unknown.

    Without a launcher's record: all of the job, if its store is at this machine's own address. Ranks without
    RANK are found by other signs, which some may lack.
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
    """`rank 3 no longer has a process, of 4 ranks that belong here`; how far it came, where that is known."""
    have = "has" if len(absent) == 1 else "have"
    they = "it" if len(absent) == 1 else "they"
    belong = f"of {len(absent) + len(job.ranks)} ranks that belong here"
    if job.expected is None:
        belong += f" (WORLD_SIZE {job.world_size}, MASTER_ADDR {job.master.rpartition(':')[0]})"
        if _STORE in _inside(waiting):
            was = "was" if len(absent) == 1 else "were"
            return (
                f"{name_ranks(absent)} {have} no process, {belong}: {they} {was} never started,"
                " or ended before the rendezvous"
            )
        if came_to_rendezvous(waiting):
            return (
                f"{name_ranks(absent)} no longer {have} a process, {belong}: {they} came to the"
                f" rendezvous, and {have} ended since"
            )
    return f"{name_ranks(absent)} no longer {have} a process, {belong}"


def missing_ranks(job: Job) -> tuple[int, ...]:
    """The job's ranks without a process here, if its world size and each process's number are known."""
    known = {rank.rank for rank in job.ranks if not isinstance(rank.rank, Missing)}
    if isinstance(job.world_size, Missing) or len(known) < len(job.ranks) or not known:
        return ()
    return tuple(rank for rank in range(job.world_size) if rank not in known)


def is_first_meeting(waiters: Waiters) -> bool:
    """Whether ranks wait where the job's process group is made: others may still be starting."""
    return any(one.call.operation in _FIRST_MEETINGS for one in waiters.positions)


def judge_missing(job: Job, alive: Sequence[Position], waiters: Waiters, limits: HangLimits) -> list[Finding]:
    """The finding for ranks that never joined, where all ranks here wait for them; else empty."""
    missing = missing_ranks(job)
    joining = [one for one in waiters.positions if one.call.operation in _FIRST_MEETINGS]
    here = job.expected is None and expected_ranks(job) is not None
    if not missing or len(joining) < len(alive) or (here and came_to_rendezvous(joining)):
        return []
    waited = max((one.since_seconds or 0.0 for one in joining), default=0.0)
    if waited < limits.news:
        return []
    youngest = min(one.seen.started_seconds_ago for one in joining)
    long = min(youngest, max(waited, youngest - _STARTS_SECONDS)) >= limits.absent
    message = (
        f"{_describe_missing(job, missing, here=here)}; {_describe_waiters(joining, waiters)}{_since(waited)}"
        f"{_describe_timeout(joining, waited)}"
    )
    if not long:
        message += f"; after {limits.absent:g} s without a new rank it is called a hang"
    group = Group(tuple(joining))
    facts = (
        Evidence("ranks_here", len(job.ranks), limit=int(str(job.world_size)), source="/proc, WORLD_SIZE"),
        Evidence("last rank started", round(youngest, 1), "seconds ago", source="/proc"),
        *facts_of(group),
    )
    subject = about_ranks(missing, job.host_of(missing[0])) if here else HostSubject(job.host)
    kind = kinds.NEVER_JOINED if long else kinds.NOT_YET
    return [kind.finding(subject, message, *facts, remedy=_remedy(job, missing, here=here))]


def _describe_timeout(joining: Sequence[Position], waited: float) -> str:
    """`; it gives up after 30 min (the process group's timeout), 28 min from now`; empty if not read."""
    frames = (frame for one in joining for frame in one.call.library)
    known = [frame.timeout_seconds for frame in frames if frame.timeout_seconds is not None]
    if not known:
        return ""
    who = "it gives" if len(joining) == 1 else "they give"
    seconds = min(known)  # the first that gives up ends the wait of all
    left = f", {describe_seconds(seconds - waited)} from now" if seconds > waited else ""
    return f"; {who} up after {describe_seconds(seconds)} (the process group's timeout){left}"


def _describe_missing(job: Job, missing: Sequence[int], *, here: bool) -> str:
    """`rank 3 is not there: 3 of 4 ranks were started here, and none has RANK=3`."""
    is_ = "is" if len(missing) == 1 else "are"
    has = "has" if len(missing) == 1 else "have"
    count = f"{len(job.ranks)} of {job.world_size} ranks"
    if here:
        return (
            f"{name_ranks(missing)} {is_} not there: {count} were started and still run, and"
            f" {name_ranks(missing)} never started, or ended before the others had joined"
        )
    node = _describe_nodes(job, missing)
    return (
        f"{name_ranks(missing)} {has} not joined{node}: {count} are on this machine, and the"
        " others never started, or wait elsewhere"
    )


def _describe_nodes(job: Job, missing: Sequence[int]) -> str:
    """` (node 1)`: the nodes of ranks that are not here, where all nodes have as many ranks as this one."""
    if not job.expected:
        return ""
    per_node = len(job.expected)
    if job.expected[0] % per_node:
        return ""
    nodes = sorted({rank // per_node for rank in missing})
    words = name_ranks(nodes).replace("ranks", "nodes").replace("rank", "node")
    return f" ({words})"


def _describe_waiters(joining: Sequence[Position], waiters: Waiters) -> str:
    return f"{waiters.name} {is_are(joining, 'waits')} in {describe_call(Group((joining[0],)))}"


def _since(waited: float) -> str:
    return f", {describe_seconds(waited)} so far" if waited >= 1 else ""


def _remedy(job: Job, missing: Sequence[int], *, here: bool) -> str:
    if not here:
        return OTHER_MACHINES
    first = missing[0]
    return (
        f"Start {name_ranks(missing)}: `RANK={first} WORLD_SIZE={job.world_size}`, with the same MASTER_ADDR"
        " and MASTER_PORT; if it was started, read what it printed last: it ended before it joined."
    )
