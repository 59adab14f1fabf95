"""Processes that share a torch store or a process group, by TCP connections: a job's ranks, however started.

`init_process_group` leaves a connection from every rank to one listening port, that of the TCPStore, and the
process that serves it is connected to itself (torch/distributed/rendezvous.py). Where the store is a file, as
in vLLM, gloo and NCCL leave connections between ranks, and threads of theirs that have names. No variable, no
command line and no stack is needed for that, so that ranks are found which were renamed, are at work, or were
started by a server without RANK.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpudiag.linux.proc import socket_inodes
from gpudiag.linux.sockets import ESTABLISHED, LISTENING, TcpSocket, read_network_namespace, read_tcp_sockets
from gpudiag.reference.waits import GROUP_THREADS


@dataclass(frozen=True, slots=True)
class Meeting:
    """Processes of this machine that share a torch store or groups; `is_local`: with no other machine."""

    address: str  # of the store: `127.0.0.1:29500`; empty without one
    members: frozenset[int]
    is_local: bool


# A port in a network namespace: containers may use one number each.
Port = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Connections:
    """TCP between the processes that were asked for: who listens, who is connected to whose port."""

    listeners: Mapping[Port, frozenset[int]]  # the processes that listen there
    clients: Mapping[Port, frozenset[int]]  # the processes with a connection to it
    addresses: Mapping[Port, str]  # an address that clients use
    far: frozenset[Port]  # with a connection from another machine

    def find_stores(self, torch_pids: Iterable[int]) -> list[Meeting]:
        """The processes that share a store: a port to which its owner and others are connected."""
        wanted = frozenset(torch_pids)
        found = []
        for port, owners in self.listeners.items():
            members = self.clients.get(port, frozenset()) & wanted
            own = owners & members
            if len(own) == 1 and len(members) > 1:
                address = f"{self.addresses.get(port, '')}:{port[1]}"
                found.append(Meeting(address, members, port not in self.far))
        return found

    def find_meshes(self, pids: Iterable[int]) -> list[Meeting]:
        """Those of these processes that are connected to each other, whoever is connected to whom."""
        wanted = frozenset(pids)
        meshes: list[Meeting] = []
        for port, owners in self.listeners.items():
            members = (owners | self.clients.get(port, frozenset())) & wanted
            if owners & wanted and len(members) > 1:
                meshes.append(Meeting("", members, port not in self.far))
        return join_meetings(meshes)

    def find_callers(self, members: frozenset[int]) -> frozenset[int]:
        """Outside processes with connections to ports of two or more members, as the driver of Ray actors."""
        called: dict[int, set[int]] = {}
        for port, owners in self.listeners.items():
            for owner in owners & members:
                for caller in self.clients.get(port, frozenset()) - members:
                    called.setdefault(caller, set()).add(owner)
        return frozenset(caller for caller, owners in called.items() if len(owners) > 1)


def join_meetings(meetings: Iterable[Meeting]) -> list[Meeting]:
    """The meetings, joined by common processes; the store with most processes gives the address."""
    joined: list[Meeting] = []
    for meeting in meetings:
        whole = meeting
        for other in [one for one in joined if one.members & meeting.members]:
            joined.remove(other)
            named = max(other, whole, key=lambda one: (bool(one.address), len(one.members)))
            whole = Meeting(named.address, other.members | whole.members, other.is_local and whole.is_local)
        joined.append(whole)
    return joined


def runs_process_group(pid: int, root: Path = Path("/")) -> bool:
    """Whether a process has threads of a process group."""
    with suppress(OSError):
        for task in (root / "proc" / str(pid) / "task").iterdir():
            with suppress(OSError):
                if (task / "comm").read_text().startswith(GROUP_THREADS):
                    return True
    return False


def read_connections(pids: Iterable[int], root: Path = Path("/")) -> Connections:
    """The TCP connections between these processes, parents first: an inherited socket is the parent's."""
    listeners: dict[Port, set[int]] = {}
    clients: dict[Port, set[int]] = {}
    addresses: dict[Port, str] = {}
    tables: dict[str, dict[int, TcpSocket]] = {}
    seen: set[int] = set()
    proc = f"{root}/proc"
    for pid in pids:
        inodes = socket_inodes(pid, proc) - seen
        namespace = read_network_namespace(pid, proc)
        if inodes and namespace not in tables:
            tables[namespace] = {
                one.inode: one for one in read_tcp_sockets(pid, proc) if one.state in (LISTENING, ESTABLISHED)
            }
        seen |= inodes
        for row in (tables[namespace][inode] for inode in inodes if inode in tables[namespace]):
            if row.state == LISTENING:
                listeners.setdefault((namespace, row.local_port), set()).add(pid)
            else:
                port = (namespace, row.remote_port)
                clients.setdefault(port, set()).add(pid)
                addresses.setdefault(port, row.remote[0])
    far = (port for namespace, rows in tables.items() for port in _find_far(namespace, rows.values()))
    return Connections(
        {port: frozenset(found) for port, found in listeners.items()},
        {port: frozenset(found) for port, found in clients.items()},
        addresses,
        frozenset(far) & listeners.keys(),
    )


def _find_far(namespace: str, rows: Iterable[TcpSocket]) -> Iterator[Port]:
    """The local ports that another machine is connected to."""
    listed = list(rows)
    own = {row.local[0] for row in listed}
    for row in listed:
        if row.state == ESTABLISHED and row.remote[0] not in own:
            yield namespace, row.local_port
