"""How the agents of one launch find each other, and what each knows of the others in case it has to lead."""

import contextlib
import hashlib
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpudiag.errors import LaunchError
from gpudiag.linux.proc import children, is_alive, read_environment
from gpudiag.ranks.agents.link import Link, connect_small
from gpudiag.ranks.agents.messages import AgentLocation, RunKey
from gpudiag.ranks.agents.own_addresses import AGENT_PORTS, look_up_in_time
from gpudiag.ranks.diagnosis.view import RankView

# --- processes of the same torchrun


class Siblings:
    """The launcher's children on this machine, by rank."""

    def __init__(self, launcher_pid: int, ranks: range) -> None:
        """`ranks` are those that the launcher starts on this machine, including this process's own."""
        self._launcher_pid = launcher_pid
        self._ranks = ranks

    def gone(self) -> frozenset[int]:
        """The ranks of this machine that have no live process; none if the kernel does not list children."""
        alive = {_rank_of(pid) for pid in children(self._launcher_pid) if is_alive(pid)}
        return frozenset(self._ranks) - alive if alive else frozenset()


def _rank_of(pid: int) -> int | None:
    text = ""
    with contextlib.suppress(OSError):
        text = read_environment(pid).get("RANK", "")
    return int(text) if text.isdecimal() else None


# --- agents

_SOCKET_NAME = "agent.sock"
_CONNECT_SECONDS = 1.0

_CANDIDATES = 8

Address = tuple[str, int]  # IP address and port


class Discovery:
    """How this agent finds the others and is found by them."""

    def __init__(self, base: Path, run_key: str, rank: int, master: str | None) -> None:
        """Search under `base`, the folder with the run directories.

        `master` is the name or address of rank 0's machine; None if all ranks are on this one.
        """
        self._base = base
        self._digest = hashlib.sha256(run_key.encode()).hexdigest()
        self._master = master
        self.rank = rank
        self.port: int | None = None  # where this agent listens for other machines
        self.is_announced = False  # whether other machines may learn of this agent beside the rendezvous
        self._turn = 0

    @property
    def key(self) -> str:
        """The key that agents exchange to check that they belong to the same run."""
        return self._digest

    def adopt(self, key: str) -> None:
        """Belong to the run with that key: it is this one, under another name of rank 0's machine."""
        self._digest = key

    @property
    def label(self) -> str:
        """The label in the name of this agent's run directory, by which the others find it."""
        return self._label(self.rank)

    @property
    def spans_machines(self) -> bool:
        """Whether some ranks may be on other machines."""
        return self._master is not None

    @property
    def own_address(self) -> Address | None:
        """Where other machines reach this agent, if it is rank 0's; the others learn theirs from a leader."""
        known = self.rank == 0 and self._master is not None and self.port is not None
        return (str(self._master), int(self.port or 0)) if known else None

    def listen(self, directory: Path) -> list[socket.socket]:
        """Listening sockets at which the others reach this agent; `directory` is its run directory."""
        listener = socket.socket(socket.AF_UNIX)
        with _short_path(directory) as path:
            listener.bind(f"{path}/{_SOCKET_NAME}")
        listeners = [listener]
        if self._master is not None or (self.is_announced and self.rank == 0):
            tcp = self._listen_for_machines()
            self.port = tcp.getsockname()[1]
            listeners.append(tcp)
        for each in listeners:
            each.listen(128)
            each.setblocking(False)
        return listeners

    def connect(self, rank: int, addresses: Mapping[int, Address]) -> Link | None:
        """A link to that rank's agent, None without; `addresses`: where others are known to listen."""
        link = self._connect_here(rank)
        if link is None and rank in addresses:
            link = connect_agent(addresses[rank], self.key)
        if link is None and rank == 0 and self._master is not None:
            link = self._connect_to_master(self._master)
        return link

    def find_twin(self) -> bool:
        """Whether another process on this machine is already the agent of this rank in this run."""
        link = self._connect_here(self.rank)
        if link is not None:
            link.close()
        return link is not None

    def _label(self, rank: int) -> str:
        return f"{self._digest[:16]}-{rank}"

    def _connect_here(self, rank: int) -> Link | None:
        for directory in self._base.glob(f"run-{self._label(rank)}-*"):
            connection = socket.socket(socket.AF_UNIX)
            connection.settimeout(_CONNECT_SECONDS)
            try:
                with _short_path(directory) as path:
                    connection.connect(f"{path}/{_SOCKET_NAME}")
            except OSError:  # left behind by a dead agent, or not listening yet
                connection.close()
            else:
                return Link(connection)
        return None

    def _connect_to_master(self, master: str) -> Link | None:
        """A link to rank 0's agent on that machine; a port without an answer ends the turn."""
        ports = self.candidate_ports()
        found = look_up_in_time(master)
        if isinstance(found, str) or not found:
            return None
        for _ in ports:
            port = ports[self._turn % len(ports)]
            try:
                link = _connect_to_one(found, port, self.key)
            except TimeoutError:
                self._turn += 1
                return None
            if link is not None:
                return link
            self._turn += 1
        return None

    def _listen_for_machines(self) -> socket.socket:
        """A bound TCP socket: rank 0's on one of the run's ports, the others' on any."""
        ports = [*self.candidate_ports(), 0] if self.rank == 0 else [0]
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        for port in ports:
            with contextlib.suppress(OSError):  # the port is taken
                return socket.create_server(("", port), family=family, dualstack_ipv6=both)
        raise LaunchError("no free port for the agents of other machines", hint="see ss -tlnp")

    def candidate_ports(self) -> list[int]:
        """The ports at which rank 0's agent listens for other machines: the first of them that is free."""
        start = int(self._digest[:8], 16)
        return [AGENT_PORTS[(start + 997 * turn) % len(AGENT_PORTS)] for turn in range(_CANDIDATES)]


def connect_agent(address: Address, key: str) -> Link | None:
    """A link to the agent of the run with that key that listens at `address`; None if none does."""
    try:
        return _connect_there(address, key)
    except TimeoutError:
        return None


def _connect_to_one(addresses: Sequence[str], port: int, key: str) -> Link | None:
    """A link at the first of these addresses with such an agent. Raises TimeoutError: the last is silent."""
    for address in addresses[:-1]:
        link = connect_agent((address, port), key)
        if link is not None:
            return link
    return _connect_there((addresses[-1], port), key)


def _connect_there(address: Address, key: str) -> Link | None:
    """A link to the agent of that run at `address`; None if there is none. Raises TimeoutError: silence."""
    try:
        link = Link(connect_small(address, _CONNECT_SECONDS))
    except TimeoutError:
        raise
    except OSError:
        return None
    link.send(RunKey(key))
    if link.await_message(RunKey, _CONNECT_SECONDS) != RunKey(key):
        link.close()
        return None
    return link


@contextlib.contextmanager
def _short_path(directory: Path) -> Iterator[str]:
    """A path to the directory short enough for a unix socket address, which holds 107 bytes (unix(7))."""
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


@dataclass(slots=True)
class Peers:
    """What an agent knows of the others, from leaders' messages and from its own attempts to connect."""

    # What every rank was doing, and where the connected agents are.
    views: tuple[RankView, ...] = ()
    agents: dict[int, AgentLocation] = field(default_factory=dict)
    # Ranks that led and are gone; that led and went silent, with the time; whose agents are unreachable.
    leaders_lost: set[int] = field(default_factory=set)
    leaders_silent: dict[int, float] = field(default_factory=dict)
    unreachable: set[int] = field(default_factory=set)

    @property
    def met(self) -> bool:
        """Whether there has been a leader: then no further agents will come up."""
        return bool(self.agents or self.leaders_lost or self.leaders_silent)

    @property
    def gone(self) -> set[int]:
        """Ranks that cannot lead."""
        return self.leaders_lost | self.leaders_silent.keys() | self.unreachable

    @property
    def addresses(self) -> dict[int, Address]:
        """Where agents listen for connections from other machines."""
        return {
            rank: location.address for rank, location in self.agents.items() if location.address is not None
        }
