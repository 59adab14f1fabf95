"""What torch's debug server (2.13, `torch.distributed.debug.start_debug_server`) reports on a job's ranks.

A script must have started it. Rank 0 then has a child that serves pages on a port, 25999 unless the script
sets another, and every rank serves its own on some port. A page of the first is written when all ranks have
answered it, so that one stopped rank makes it wait for a minute; here it is asked only where the ranks serve,
and each rank for itself.
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from threading import Lock, Thread
from time import monotonic
from typing import Any

from gpudiag.linux.proc import socket_inodes
from gpudiag.linux.sockets import listening_ports
from gpudiag.model.job_state import DebugAnswers, FlightRecord
from gpudiag.model.reading import Missing, MissingReason, Reading
from gpudiag.probe.job.flight_recorder import DumpRefused, parse_dump

DEFAULT_PORT = 25999
DEADLINE_SECONDS = 3.0
MAX_PAGE_BYTES = 16 << 20
MAX_RANKS = 4096
_AT_ONCE = 32
_MAX_TEXT = 200_000

_TITLE = b"Torch Distributed Debug Server"
_RANK_ADDRESS = re.compile(
    r"debug_server/rank(\d{1,7}): b'http://([A-Za-z0-9.\-]{1,253}|\[[0-9A-Fa-f:]{2,45}\]):(\d{1,5})'"
)
# Per rank: gloo's records; NCCL's; stacks; how many wait in what.
_RECORDS = "fr_trace_json"
_NCCL_RECORDS = "dump_nccl_trace_json"
_STACKS = "dump_traceback"
_WAITS = "wait_counter_values"


def find_debug_server(pids: list[int], root: Path = Path("/")) -> int | None:
    """The port on which one of these processes serves the pages: a rank 0, and the processes that it started.

    25999 if one of them listens there; else the only port of a process other than the first that the first
    does not share, as a fork does with what was open before it.
    """
    if not pids:
        return None
    listening = listening_ports(pids[0], f"{root}/proc")
    own = [socket_inodes(pid, f"{root}/proc") for pid in pids]
    ports = [{listening[one] for one in sockets if one in listening} for sockets in own]
    if any(DEFAULT_PORT in some for some in ports):
        return DEFAULT_PORT
    for sockets in own[1:]:
        alone = {listening[one] for one in sockets - own[0] if one in listening}
        if len(alone) == 1:
            return alone.pop()
    return None


def read_debug_server(
    port: int = DEFAULT_PORT, *, host: str = "localhost", deadline_seconds: float = DEADLINE_SECONDS
) -> Reading[DebugAnswers]:
    """What the ranks of the job answered, or why nobody did; ranks that did not are named."""
    deadline = monotonic() + deadline_seconds
    address = f"{host}:{port}"
    page = _within(deadline, lambda: _ask(host, port, "GET", "/tcpstore", deadline))
    if isinstance(page, Missing):
        return Missing(page.reason, f"{page.detail} (torch's debug server at {address})")
    if _TITLE not in page:
        return Missing(MissingReason.ERROR, f"what listens on {address} is not torch's debug server")
    places = _rank_places(page.decode("utf-8", "replace"))
    if not places:
        return Missing(
            MissingReason.ERROR, f"torch's debug server at {address} does not list the ranks' addresses"
        )
    return _ask_ranks(address, places, deadline)


def _rank_places(page: str) -> dict[int, tuple[str, int]]:
    """Where each rank serves, by the keys of the store that they wrote."""
    places: dict[int, tuple[str, int]] = {}
    for found in _RANK_ADDRESS.finditer(page):
        if len(places) < MAX_RANKS and 0 < int(found.group(3)) <= 65535:
            places[int(found.group(1))] = (found.group(2).strip("[]"), int(found.group(3)))
    return places


@dataclass(slots=True)
class _Gathered:
    """What ranks have answered so far; written by many threads."""

    lock: Lock = field(default_factory=Lock)
    records: list[FlightRecord] = field(default_factory=list)
    stacks: dict[int, str] = field(default_factory=dict)
    waits: dict[int, tuple[tuple[str, int], ...]] = field(default_factory=dict)


def _ask_ranks(address: str, places: dict[int, tuple[str, int]], deadline: float) -> DebugAnswers:
    gathered = _Gathered()
    waiting = iter(sorted(places.items()))
    lock = Lock()

    def work() -> None:
        while monotonic() < deadline:
            with lock:
                rank, place = next(waiting, (-1, ("", 0)))
            if rank < 0:
                return
            _ask_rank(rank, place, gathered, deadline)

    threads = [Thread(target=work, daemon=True) for _ in range(min(_AT_ONCE, len(places)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - monotonic()))
    with gathered.lock:
        answered = set(gathered.stacks) | set(gathered.waits)
        answered |= {one.rank for one in gathered.records if isinstance(one.rank, int)}
        return DebugAnswers(
            address=address,
            records=tuple(gathered.records),
            stacks=tuple(sorted(gathered.stacks.items())),
            waits=tuple(sorted(gathered.waits.items())),
            silent=tuple(rank for rank in sorted(places) if rank not in answered),
        )


def _ask_rank(rank: int, place: tuple[str, int], gathered: _Gathered, deadline: float) -> None:
    for handler in (_RECORDS, _WAITS, _STACKS, _NCCL_RECORDS):
        answer = _ask(*place, "POST", f"/handler/{handler}?", deadline)
        if isinstance(answer, Missing):
            if answer.reason is MissingReason.NOT_SUPPORTED:
                continue  # a build without NCCL has no such page
            return
        with gathered.lock:
            if handler == _STACKS:
                gathered.stacks[rank] = answer[:_MAX_TEXT].decode("utf-8", "replace")
            elif handler == _WAITS:
                gathered.waits[rank] = tuple(_waits(answer))
            else:
                with suppress(DumpRefused):
                    source = f"rank {rank} by torch's debug server"
                    gathered.records.append(parse_dump(answer, source=source, rank=rank, host=place[0]))


def _waits(answer: bytes) -> Iterator[tuple[str, int]]:
    """The counters that somebody waits in now."""
    with suppress(ValueError, RecursionError):
        counters = json.loads(answer)
        for name, about in counters.items() if isinstance(counters, dict) else ():
            active = about.get("active_count") if isinstance(about, dict) else None
            if type(active) is int and active > 0:
                yield name[:200], active


def _within(deadline: float, ask: Callable[[], Reading[bytes]]) -> Reading[bytes]:
    """The answer, or a time-out: a name server, or a server that sends byte by byte, is not waited for."""
    answers: list[Reading[bytes]] = []
    thread = Thread(target=lambda: answers.append(ask()), daemon=True)
    thread.start()
    thread.join(max(0.0, deadline - monotonic()))
    return answers[0] if answers else Missing(MissingReason.TIMED_OUT, "it did not answer in time")


def _ask(host: str, port: int, method: str, path: str, deadline: float) -> Reading[bytes]:
    left = deadline - monotonic()
    if left <= 0:
        return Missing(MissingReason.TIMED_OUT, "it did not answer in time")
    connection = HTTPConnection(host, port, timeout=left)
    try:
        connection.request(method, path, headers={"Content-Length": "0"} if method == "POST" else {})
        return _read_answer(connection.getresponse(), deadline)
    except TimeoutError:
        return Missing(MissingReason.TIMED_OUT, "it did not answer in time")
    except (HTTPException, ValueError):
        return Missing(MissingReason.ERROR, "it speaks no HTTP")
    except OSError as error:
        return Missing(MissingReason.SOURCE_ABSENT, f"it could not be asked: {error or type(error).__name__}")
    finally:
        connection.close()


def _read_answer(response: Any, deadline: float) -> Reading[bytes]:
    if response.status == 404:
        return Missing(MissingReason.NOT_SUPPORTED, "it has no such page")
    if response.status != 200:
        return Missing(MissingReason.ERROR, f"it answered with status {response.status}")
    answer = bytearray()
    while part := response.read1(1 << 16):
        answer += part
        if len(answer) > MAX_PAGE_BYTES:
            return Missing(MissingReason.ERROR, f"its answer is longer than {MAX_PAGE_BYTES >> 20} MiB")
        if monotonic() > deadline:
            return Missing(MissingReason.TIMED_OUT, "it did not answer in time")
    return bytes(answer)
