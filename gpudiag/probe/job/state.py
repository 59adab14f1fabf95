"""What a job reports about itself, where its environment sets it: NCCL RAS, flight records, debug server.

Each source has a thread and all have one deadline: a pipe, a disk or a server that does not answer costs only
itself. Nothing is sent to a port that no process of the job listens on. A dump is asked for only where the
job has a pipe for that and has written none: an earlier dump, of a timeout, is never overwritten.
"""

import os
import stat
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Thread

from gpudiag.linux.proc import read_environment, read_stat, read_status, socket_inodes
from gpudiag.linux.sockets import listening_ports, read_network_namespace
from gpudiag.model.job import Job, RankSeen
from gpudiag.model.job_state import FlightRecord, JobState
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.probe.job.debug_server import (
    find_debug_server,
    read_debug_server,
)
from gpudiag.probe.job.flight_recorder import DumpRefused, read_dump, shorten
from gpudiag.probe.job.ras import ras_address, read_ras

DEADLINE_SECONDS = 3.0
_PIPE_SECONDS = 2.5  # a rank looks at its pipe once a second
_POLL_SECONDS = 0.1
_MOST_PIDS = 600
_KEPT_CALLS = 16  # of each group, beside those that have not ended
# Where torch writes the dump of a rank, and the pipe by which one is asked for; 2.9 renamed the first.
_DUMP_VARIABLES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_PIPE_VARIABLES = ("TORCH_FR_DEBUG_INFO_PIPE_FILE", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE")
_OLD_DEFAULT = "/tmp/nccl_trace_rank_"  # noqa: S108 - torch's, before 2.9


@dataclass(frozen=True, slots=True)
class _Rank:
    """A rank of the job with the variables that it was started with."""

    seen: RankSeen
    rank: int
    variables: Mapping[str, str]
    started_at: float  # seconds since 1970


def read_job_state(
    job: Job,
    *,
    root: Path = Path("/"),
    deadline_seconds: float = DEADLINE_SECONDS,
    kept_calls: int = _KEPT_CALLS,
) -> JobState:
    """What the job reports about itself on this machine; nothing where it has none of the sources.

    Of flight records so many calls are kept of each group, the last ones, beside those that have not ended.
    """
    ranks = [
        _Rank(seen, seen.rank, _read_variables(root, seen.pid), _read_start(root, seen))
        for seen in job.ranks
        if isinstance(seen.rank, int)
    ]
    parts: list[JobState] = []
    sources: tuple[tuple[str, Callable[[], JobState]], ...] = (
        ("NCCL RAS", lambda: _read_ras_of(job, ranks, root)),
        ("the flight recorder's dumps", lambda: _read_dumps(ranks, root)),
        ("torch's debug server", lambda: _read_server(job, root)),
    )
    threads = [
        (name, Thread(target=lambda s=source: parts.append(s()), daemon=True)) for name, source in sources
    ]
    until = time.monotonic() + deadline_seconds
    for _, thread in threads:
        thread.start()
    for _, thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    late = tuple(
        f"{name} did not answer in {deadline_seconds:g} s" for name, thread in threads if thread.is_alive()
    )
    done = list(parts)
    return JobState(
        ras=tuple(looks for part in done for looks in part.ras),
        records=tuple(shorten(record, kept_calls) for part in done for record in part.records),
        notes=(*(note for part in done for note in part.notes), *late),
    )


def _read_variables(root: Path, pid: int) -> dict[str, str]:
    with suppress(OSError):
        return read_environment(pid, f"{root}/proc")
    return {}


def _read_start(root: Path, seen: RankSeen) -> float:
    """When the rank started: an older dump is of another run, as the attempt before an elastic restart."""
    with suppress(OSError, ValueError, IndexError):
        uptime_seconds = float((root / "proc/uptime").read_text().split()[0])
        started_seconds = read_stat(seen.pid, root=f"{root}/proc").started_seconds
        return time.time() - uptime_seconds + started_seconds
    return time.time() - seen.started_seconds_ago


# --- NCCL RAS


def _read_ras_of(job: Job, ranks: list[_Rank], root: Path) -> JobState:
    pids = frozenset(rank.seen.pid for rank in ranks)
    addresses: dict[str, _Rank] = {}
    listening: dict[str, dict[int, int]] = {}  # by namespace: a table of many connections is slow to read
    for rank in ranks:
        address = ras_address(dict(rank.variables))
        if address is None or address in addresses:
            continue
        namespace = read_network_namespace(rank.seen.pid, f"{root}/proc")
        if namespace not in listening:
            listening[namespace] = listening_ports(rank.seen.pid, f"{root}/proc")
        if _listens(root, rank.seen.pid, address, listening[namespace]):
            addresses[address] = rank
    state = JobState(notes=_note_foreign(ranks, listening, addresses, root))
    for address, rank in list(addresses.items())[:4]:
        if _is_elsewhere(root, rank.seen.pid):
            note = "NCCL RAS listens in the network namespace of a container: run `gpudiag hang` in it"
            state = replace(state, notes=(*state.notes, note))
            continue
        is_whole = job.world_size == len(ranks)
        looks = read_ras(address, pids=pids | _pids_inside(root, pids), is_whole=is_whole)
        if isinstance(looks, Missing):
            state = replace(state, notes=(*state.notes, looks.detail))
        else:
            state = replace(state, ras=(*state.ras, looks))
    return state


def _note_foreign(
    ranks: list[_Rank], listening: Mapping[str, Mapping[int, int]], own: Mapping[str, _Rank], root: Path
) -> tuple[str, ...]:
    """What to do where another job holds the port of NCCL's RAS, and no rank of this one listens there."""
    if own or not ranks:
        return ()
    address = ras_address(dict(ranks[0].variables))
    port = "" if address is None else address.rpartition(":")[2]
    taken = port in {
        str(one)
        for one in listening.get(read_network_namespace(ranks[0].seen.pid, f"{root}/proc"), {}).values()
    }
    if not taken or not _has_loaded(root, ranks[0].seen.pid, "libnccl"):
        return ()
    words = (
        f"NCCL RAS at {address} is of another job: give each job of a machine its own"
        " port, `NCCL_RAS_ADDR=localhost:PORT`"
    )
    return (words,)


def _has_loaded(root: Path, pid: int, library: str) -> bool:
    with suppress(OSError):
        return library in (root / "proc" / str(pid) / "maps").read_text(errors="replace")
    return False


def _listens(root: Path, pid: int, address: str, listening: Mapping[int, int]) -> bool:
    port = address.rpartition(":")[2]
    inodes = {inode for inode, one in listening.items() if str(one) == port}
    return bool(inodes) and not inodes.isdisjoint(socket_inodes(pid, f"{root}/proc"))


def _is_elsewhere(root: Path, pid: int) -> bool:
    """Whether a process is in another network namespace than this one."""
    theirs, own = read_network_namespace(pid, f"{root}/proc"), read_network_namespace("self", f"{root}/proc")
    return bool(theirs and own) and theirs != own


def _pids_inside(root: Path, pids: frozenset[int]) -> frozenset[int]:
    """The numbers that the processes have in their own containers, by which they name themselves."""
    inside = set()
    for pid in pids:
        with suppress(OSError, ValueError, LookupError):
            inside.add(int(read_status(pid, f"{root}/proc")["NSpid"].split()[-1]))
    return frozenset(inside)


# --- flight records


def _read_dumps(ranks: list[_Rank], root: Path) -> JobState:
    records: list[FlightRecord] = []
    notes: list[str] = []
    asked: list[tuple[_Rank, Path, float]] = []
    for rank in ranks:
        found = next((path for path in _dump_paths(rank, root) if _is_fresh(path, rank.started_at)), None)
        if found is not None:
            _read_one(found, rank, records, notes)
        elif (pipe := _pipe_path(rank, root)) is not None and (began := _ask(pipe)) is not None:
            asked.append((rank, _dump_paths(rank, root)[0], began))
    if asked:
        several = ", ".join(str(rank.rank) for rank, _, _ in asked)
        notes.append(f"a dump of the flight recorder was asked for by the pipes of ranks {several}")
    until = time.monotonic() + _PIPE_SECONDS
    for rank, path, began in asked:
        while not _is_fresh(path, began) and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)
        if not _is_fresh(path, began):
            notes.append(f"rank {rank.rank} wrote no dump within {_PIPE_SECONDS:g} s")
        else:
            _read_when_whole(path, rank, records, notes, until)
    return JobState(records=tuple(records), notes=tuple(notes))


def _read_one(path: Path, rank: _Rank, records: list[FlightRecord], notes: list[str]) -> None:
    try:
        record = read_dump(path, rank=rank.rank)
        records.append(replace(record, dumped_at=path.stat().st_mtime))
    except DumpRefused as refused:
        notes.append(f"rank {rank.rank}: {str(refused).rstrip('.')}")
    except OSError:
        notes.append(f"rank {rank.rank}: its dump is gone")


def _read_when_whole(
    path: Path, rank: _Rank, records: list[FlightRecord], notes: list[str], until: float
) -> None:
    """Read a dump that is being written: again, until it is whole or time is up."""
    while True:
        tried: list[str] = []
        _read_one(path, rank, records, tried)
        if not tried or time.monotonic() >= until:
            notes += tried
            return
        time.sleep(_POLL_SECONDS)


def _dump_paths(rank: _Rank, root: Path) -> list[Path]:
    """Where the rank's dump may lie: where its variables set it, else where torch writes by itself."""
    named = [value for name in _DUMP_VARIABLES if (value := rank.variables.get(name))]
    home = rank.variables.get("XDG_CACHE_HOME") or f"{rank.variables.get('HOME', '')}/.cache"
    prefixes = named[:1] or [f"{home}/torch/comm_lib_trace_rank_", _OLD_DEFAULT]
    return [_as_rank_sees(rank, root, f"{prefix}{rank.rank}") for prefix in prefixes]


def _pipe_path(rank: _Rank, root: Path) -> Path | None:
    named = next((value for name in _PIPE_VARIABLES if (value := rank.variables.get(name))), None)
    return None if named is None else _as_rank_sees(rank, root, f"{named}{rank.rank}.pipe")


def _as_rank_sees(rank: _Rank, root: Path, path: str) -> Path:
    """The path in the rank's own file system, which may be a container's."""
    process = root / "proc" / str(rank.seen.pid)
    inside = process / "root" / path.lstrip("/") if path.startswith("/") else process / "cwd" / path
    with suppress(OSError):
        inside.parent.stat()
        return inside
    return Path(path)


def _is_fresh(path: Path, since: float) -> bool:
    """Whether a regular file was written since then; a clock's tick is allowed for."""
    with suppress(OSError):
        about = path.stat()
        return stat.S_ISREG(about.st_mode) and about.st_size > 0 and about.st_mtime >= since - 0.05
    return False


def _ask(pipe: Path) -> float | None:
    """When the rank was asked for a dump; None where its pipe is none, or nobody reads it."""
    try:
        descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            return None
        began = time.time()
        os.write(descriptor, b"1\n")
    except OSError:
        return None
    else:
        return began
    finally:
        os.close(descriptor)


# --- torch's debug server


def _read_server(job: Job, root: Path) -> JobState:
    first = next((seen for seen in job.ranks if seen.rank == 0), None)
    if first is None:
        return JobState()
    pids = [first.pid, *(child.pid for child in first.children)][:_MOST_PIDS]
    port = find_debug_server(pids, root)
    if port is None:
        return JobState()
    if _is_elsewhere(root, first.pid):
        return JobState(
            notes=("torch's debug server listens in a container's network: run `gpudiag hang` in it",)
        )
    answers = read_debug_server(port)
    if isinstance(answers, Missing):
        return JobState() if answers.reason is MissingReason.ERROR else JobState(notes=(answers.detail,))
    silent = (
        (f"ranks {', '.join(map(str, answers.silent[:16]))} did not answer torch's debug server",)
        if answers.silent
        else ()
    )
    now = time.time()
    return JobState(records=tuple(replace(one, dumped_at=now) for one in answers.records), notes=silent)
