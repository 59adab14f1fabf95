"""Which processes share a torch store, by sockets as /proc shows them."""

from dataclasses import dataclass, field
from pathlib import Path

from gpudiag.probe.job.stores import Connections, read_connections, runs_process_group

RANK0, RANK1, RANK2, SERVER, OTHER = 20, 21, 22, 10, 40
LISTEN, ESTABLISHED, TIME_WAIT = "0A", "01", "06"
STORE, GLOO, HTTP = 29500, 40001, 8000


@dataclass
class Machine:
    """A tree of /proc with the sockets that were opened."""

    root: Path
    rows: dict[str, list[str]] = field(default_factory=dict)
    namespaces: dict[int, str] = field(default_factory=dict)
    inodes: int = 1000

    def open(
        self, pid: int, state: str, local: int, remote: int = 0, peer: str = "0100007F", *also: int
    ) -> None:
        """A socket of a process, which `also` others have inherited.

        The address is 127.0.0.1 where no other is named.
        """
        self.inodes += 1
        words = f" 0: 0100007F:{local:04X} {peer}:{remote:04X} {state} 0:0 0:0 0 0 0 {self.inodes} 1 0"
        self.rows.setdefault(self.namespaces.get(pid, "net:[1]"), []).append(words)
        for one in (pid, *also):
            folder = self.root / "proc" / str(one)
            (folder / "fd").mkdir(parents=True, exist_ok=True)
            (folder / "fd" / str(self.inodes)).symlink_to(f"socket:[{self.inodes}]")

    def connect(self, client: int, server: int, port: int, *also: int) -> None:
        """Both ends of a connection to a port of another process."""
        local = 50000 + self.inodes % 10000
        self.open(client, ESTABLISHED, local, port, "0100007F", *also)
        self.open(server, ESTABLISHED, port, local)

    def read(self, *pids: int) -> Connections:
        """The connections of these processes."""
        for pid in pids:
            folder = self.root / "proc" / str(pid)
            (folder / "ns").mkdir(parents=True, exist_ok=True)
            (folder / "net").mkdir(exist_ok=True)
            namespace = self.namespaces.get(pid, "net:[1]")
            (folder / "ns/net").symlink_to(namespace)
            (folder / "net/tcp").write_text("\n".join(["  sl  local", *self.rows.get(namespace, ())]))
        return read_connections(pids, self.root)


def of_three_ranks(root: Path) -> Machine:
    """Three ranks with a store on rank 0, connections of gloo between them, and a server that gives them work
    over TCP.
    """
    machine = Machine(root)
    machine.open(RANK0, LISTEN, STORE)
    for rank in (RANK0, RANK1, RANK2):
        machine.connect(rank, RANK0, STORE)
    machine.open(RANK1, LISTEN, GLOO)
    machine.connect(RANK2, RANK1, GLOO)
    machine.open(SERVER, LISTEN, HTTP)
    for rank in (RANK0, RANK1, RANK2):
        machine.connect(rank, SERVER, HTTP)
    return machine


def test_ranks_are_those_connected_to_the_port_of_a_process_that_is_connected_to_itself(
    tmp_path: Path,
) -> None:
    """So the server that all of them are connected to is none, nor is who has no torch."""
    connections = of_three_ranks(tmp_path).read(SERVER, RANK0, RANK1, RANK2)
    (store,) = connections.find_stores((SERVER, RANK0, RANK1, RANK2))
    assert store.members == {RANK0, RANK1, RANK2}
    assert store.address == f"127.0.0.1:{STORE}"
    assert store.is_local
    (smaller,) = connections.find_stores((RANK0, RANK1))
    assert smaller.members == {RANK0, RANK1}


def test_a_socket_that_a_forked_worker_inherited_is_its_parents(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.open(RANK0, LISTEN, STORE)
    machine.connect(RANK0, RANK0, STORE, OTHER)
    assert machine.read(RANK0, OTHER).find_stores((RANK0, OTHER)) == []


def test_a_rank_of_another_machine_is_told(tmp_path: Path) -> None:
    machine = of_three_ranks(tmp_path)
    machine.open(RANK0, ESTABLISHED, STORE, 51000, "0200000A")
    (store,) = machine.read(RANK0, RANK1).find_stores((RANK0, RANK1))
    assert not store.is_local


def test_one_port_in_two_containers_is_two_stores(tmp_path: Path) -> None:
    machine = Machine(tmp_path, namespaces={OTHER: "net:[2]", OTHER + 1: "net:[2]"})
    for first in (RANK0, OTHER):
        machine.open(first, LISTEN, STORE)
        machine.connect(first, first, STORE)
        machine.connect(first + 1, first, STORE)
    stores = machine.read(RANK0, RANK1, OTHER, OTHER + 1).find_stores((RANK0, RANK1, OTHER, OTHER + 1))
    assert sorted(sorted(one.members) for one in stores) == [[RANK0, RANK1], [OTHER, OTHER + 1]]


def test_who_calls_several_ranks_over_tcp_is_found(tmp_path: Path) -> None:
    """As the driver of Ray's actors does; one that is connected to a single rank is any client."""
    machine = of_three_ranks(tmp_path)
    machine.open(RANK0, LISTEN, GLOO + 1)
    for rank, port in ((RANK0, GLOO + 1), (RANK1, GLOO)):
        machine.connect(SERVER, rank, port)
    machine.connect(OTHER, RANK1, GLOO)
    connections = machine.read(SERVER, RANK0, RANK1, RANK2, OTHER)
    assert connections.find_callers(frozenset((RANK0, RANK1, RANK2))) == {SERVER}


def test_processes_that_are_connected_to_each_other_are_a_mesh(tmp_path: Path) -> None:
    connections = of_three_ranks(tmp_path).read(SERVER, RANK0, RANK1, RANK2)
    (mesh,) = connections.find_meshes((RANK1, RANK2))
    assert mesh.members == {RANK1, RANK2}
    assert (mesh.address, mesh.is_local) == ("", True)
    assert connections.find_meshes((RANK1,)) == []


def test_a_process_group_is_told_by_its_threads(tmp_path: Path) -> None:
    names = {RANK0: "pt_gloo_runloop", RANK1: "pt_nccl_watchdg", RANK2: "gloo_tcp_loop", SERVER: "asyncio_0"}
    for pid, name in names.items():
        (tmp_path / f"proc/{pid}/task/{pid}").mkdir(parents=True)
        (tmp_path / f"proc/{pid}/task/{pid}/comm").write_text("python\n")
        (tmp_path / f"proc/{pid}/task/{pid + 100}").mkdir()
        (tmp_path / f"proc/{pid}/task/{pid + 100}/comm").write_text(f"{name}\n")
    assert [pid for pid in (*names, OTHER) if runs_process_group(pid, tmp_path)] == [RANK0, RANK1, RANK2]


def test_processes_that_are_gone_or_hidden_have_no_connections(tmp_path: Path) -> None:
    connections = read_connections((RANK0, RANK1), tmp_path)
    assert connections.find_stores((RANK0, RANK1)) == []
