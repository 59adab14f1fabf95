"""A stand-in for the RAS of an NCCL job: its protocol, and its answers as text (2.24, 2.26) and JSON (2.28.9,
2.29).

Written by NCCL's sources (src/ras/client_support.cc of the tags v2.24.3-1 to v2.30.4-1): what a command is
answered, what the table and the sections hold, and which lines there are.
"""

import json
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Thread

OPERATIONS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
HOST = "10.0.0.7"


@dataclass
class FakeRank:
    """A rank of a communicator: how many of each operation it has launched, or why it is absent."""

    counts: dict[str, int] = field(default_factory=dict)
    absent: str = ""  # unresponsive, dead, nocomm
    pid: int = 0
    init_state: int = 0
    async_error: int = 0
    finalized: bool = False


@dataclass
class FakeCommunicator:
    """One communicator."""

    ranks: list[FakeRank]
    identity: int = 0xCF264AF53EDBE986


def as_json(communicators: Sequence[FakeCommunicator], version: str = "2.29.2", timeouts: int = 0) -> bytes:
    """The JSON of that version; before 2.29 a comma is left out."""
    document = {
        "nccl_version": version,
        "cuda_runtime_version": 13000,
        "cuda_driver_version": 13000,
        "timestamp": "2026-01-19 13:06:53",
        "communicators_count": len(communicators),
        "communicators": [_communicator(one) for one in communicators],
        "ras": {"collection_time_sec": 0.001, "timeouts_count": timeouts},
    }
    text = json.dumps(document, indent=2)
    if version.startswith("2.28"):
        lines = text.splitlines()
        for number, line in enumerate(lines):
            if (
                '"nvml_dev"' in line
                and '"status"' in lines[number + 1]
                and '"unresponsive"' in lines[number + 2]
            ):
                lines[number] = line.removesuffix(",")
        text = "\n".join(lines)
    return text.encode() + b"\n"


def _communicator(one: FakeCommunicator) -> dict[str, object]:
    absent = [rank for rank in one.ranks if rank.absent]
    return {
        "hash": f"{one.identity:#x}",
        "secondary_hash": "0xb7e7187447156001:0xb8242ed28a71381e",
        "size": len(one.ranks),
        "ranks_count": len(one.ranks) - len(absent),
        "missing_ranks_count": len(absent),
        "ranks": [
            _place(number, rank)
            | {
                "status": {
                    "init_state": rank.init_state,
                    "async_error": rank.async_error,
                    "finalize_called": rank.finalized,
                    "destroy_flag": rank.finalized,
                    "abort_flag": False,
                },
                "collective_counts": {name: rank.counts.get(name, 0) for name in OPERATIONS},
            }
            for number, rank in enumerate(one.ranks)
            if not rank.absent
        ],
        "missing_ranks": [
            _place(number, rank)
            | {
                "status": {
                    "unresponsive": rank.absent in ("unresponsive", "dead"),
                    "considered_dead": rank.absent == "dead",
                }
            }
            for number, rank in enumerate(one.ranks)
            if rank.absent
        ],
    }


def _place(number: int, rank: FakeRank) -> dict[str, object]:
    pid = rank.pid or 4000 + number
    return {"rank": number, "host": HOST, "pid": pid, "cuda_dev": number % 8, "nvml_dev": number % 8}


def as_text(
    communicators: Sequence[FakeCommunicator], version: str = "2.24.3", *, verbose: bool = True
) -> bytes:
    """The text of that version; from 2.26 on it counts each operation, and names absent ranks one by one."""
    each = tuple(int(part) for part in version.split(".")) >= (2, 26)
    silent = sum(rank.absent == "unresponsive" for rank in communicators[0].ranks)
    dead = sum(rank.absent == "dead" for rank in communicators[0].ranks)
    lines = [
        f"NCCL version {version}+cuda12.6 compiled with CUDA 12.6",
        "CUDA runtime version 12060, driver version 12060\n",
        "Job summary\n===========\n",
        "  Nodes  Processes         GPUs  Processes     GPUs",
        "(total)   per node  per process    (total)  (total)",
        "      1          8            1          8        8\n",
        "Communicators... (0.00s)\n=============\n",
        "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors",
        "    #  in group  per comm  per node  per comm  in group",
    ]
    told = [_findings(one, each=each) for one in communicators]
    for number, (one, found) in enumerate(zip(communicators, told, strict=True)):
        lines.append(
            f"{number:5}  {1:8}  {1:8}  {len(one.ranks):>8}  {len(one.ranks):8}  {len(one.ranks):8}  "
            f"{'RUNNING':>8}  {','.join(found) or 'OK':>6}"
        )
    lines += ["\nErrors\n======\n"]
    for count, word, said in ((silent, "INCOMPLETE", "Missing communicator data from"), (dead, "DEAD", "")):
        if not count:
            continue
        several = "es" if count > 1 else ""
        lines += [word, f"  {said} {count} job process{several}" if said else _dead(count)]
        lines += [
            f"  Process {4000 + place} on node {HOST} managing GPU {place}"
            for place, rank in enumerate(communicators[0].ranks)
            if rank.absent == ("unresponsive" if said else "dead")
        ]
        lines.append("")
    for section in ("ERROR", "WARNING"):
        if section == "WARNING":
            lines += ["Warnings\n========\n"]
            if silent:
                lines += [
                    "TIMEOUT",
                    "  Encountered 2 communication timeouts while gathering communicator data\n",
                ]
        for number, (one, found) in enumerate(zip(communicators, told, strict=True)):
            for word, some in found.items():
                if (word == "MISMATCH") == (section == "WARNING"):
                    lines += [f"#{number}-0 ({one.identity:016x}) {word}", *some, ""]
    return "\n".join(lines).encode() + b"\n"


def _dead(count: int) -> str:
    are = "es are" if count > 1 else " is"
    return f"  {count} job process{are} considered dead (unreachable via the RAS network)"


def _findings(one: FakeCommunicator, *, each: bool) -> dict[str, list[str]]:
    """The sections about one communicator."""
    found: dict[str, list[str]] = {}
    absent = [number for number, rank in enumerate(one.ranks) if rank.absent in ("dead", "unresponsive")]
    if absent:
        several = "s" if len(absent) > 1 else ""
        found["INCOMPLETE"] = [f"  Missing communicator data from {len(absent)} rank{several}"]
        if each:
            found["INCOMPLETE"] += [f"  Rank {number} -- {_where(number, one)}" for number in absent]
        else:
            found["INCOMPLETE"].append(f"  The missing rank{several}: {','.join(map(str, absent))}")
    errors = [(number, rank) for number, rank in enumerate(one.ranks) if rank.async_error]
    if errors:
        found["ERROR"] = [f"  Asynchronous error on {len(errors)} rank"]
        found["ERROR"] += [
            f"  Rank {number} reported System error -- {_where(number, one)}" for number, _ in errors
        ]
    there = {number: rank for number, rank in enumerate(one.ranks) if not rank.absent}
    mismatch: list[str] = []
    for operation in OPERATIONS if each else ("collective",):
        counted = {
            number: rank.counts.get(operation, 0) if each else sum(rank.counts.values())
            for number, rank in there.items()
        }
        if len(set(counted.values())) > 1:
            mismatch.append(f"  Communicator ranks have different {operation} operation counts")
            mismatch += _sets(one, counted)
    if mismatch:
        found["MISMATCH"] = mismatch
    return found


def _sets(one: FakeCommunicator, counted: dict[int, int]) -> Iterator[str]:
    for value, count in Counter(counted.values()).most_common():
        done = f"launched up to operation {value}" if value else "not launched any operations"
        ranks = [number for number in sorted(counted) if counted[number] == value]
        if count > 1:
            yield f"  {count} ranks have {done}"
        if count == 1 or count < len(one.ranks) * 0.5:  # verbose
            for number in ranks:
                said = f" has {done}" if count == 1 else ""
                yield f"  Rank {number}{said} -- {_where(number, one)}"


def _where(number: int, one: FakeCommunicator) -> str:
    pid = one.ranks[number].pid or 4000 + number
    return f"GPU {number % 8} managed by process {pid} on node {HOST}"


Answer = Callable[[int, bool], bytes]


@contextmanager
def ras_server(
    answer: Answer, *, speaks_json: bool = True, greeting: bytes | None = None, port: int = 0
) -> Iterator[str]:
    """The address of a server that answers STATUS with `answer(number of the query, whether as JSON)`."""
    listener = socket.create_server(("127.0.0.1", port))
    count = 0

    def serve() -> None:
        nonlocal count
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                if _converse(connection, answer, count, speaks_json, greeting):
                    count += 1

    thread = Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)


def _converse(
    connection: socket.socket, answer: Answer, count: int, speaks_json: bool, greeting: bytes | None
) -> bool:
    """Answer the commands of one client; whether it asked for the status."""
    wants_json = False
    with connection.makefile("rb") as lines:
        for line in lines:
            command = line.strip().lower()
            if command.startswith(b"client protocol "):
                connection.sendall(greeting or b"SERVER PROTOCOL 2\n")
            elif command.startswith(b"timeout "):
                connection.sendall(b"OK\n")
            elif command.startswith(b"set format ") and speaks_json:
                wants_json = command.endswith(b"json")
                connection.sendall(b"OK\n")
            elif command in (b"status", b"verbose status"):
                connection.sendall(answer(count, wants_json))
                return True
            else:
                connection.sendall(b"ERROR: Unknown command " + line)
    return False
