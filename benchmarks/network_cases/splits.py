"""Starts in which some ranks went elsewhere, or one process has other settings than the others."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.network_cases.case import PORT, Arrange, Case, Start, blamed
from tests.ranks.machines import Machine, filter_packets

_ELSEWHERE = PORT + 1


def at(place: str, port: int = PORT) -> Start:
    """A rank that looks for rank 0 there."""
    return Start(meets=f"{place}:{port}")


def _as(rank: int, world_size: int = 4) -> Start:
    return Start(rank=rank, world_size=world_size)


def _at_file(world_size: int, delay_seconds: float = 0.0) -> Start:
    return Start(
        flags=("--init-method", "file://{folder}/meet"), world_size=world_size, delay_seconds=delay_seconds
    )


def _names(machine: int, **addresses: str) -> Arrange:
    """On that machine, counted from 1, these names have other addresses."""

    @contextlib.contextmanager
    def arrange(machines: Sequence[Machine]) -> Iterator[None]:
        hosts = Path("/etc/netns") / machines[machine - 1].namespace / "hosts"
        lines = [line for line in hosts.read_text().splitlines() if line.split()[-1] not in addresses]
        hosts.write_text(
            "\n".join([*lines, *(f"{address} {name}" for name, address in addresses.items())]) + "\n"
        )
        yield

    return arrange


def _filtered(machine: int, *rules: str) -> Arrange:
    """That machine, counted from 1, has these rules for packets that come in."""

    @contextlib.contextmanager
    def arrange(machines: Sequence[Machine]) -> Iterator[None]:
        filter_packets(machines[machine - 1], *rules)
        yield

    return arrange


# A server that takes connections, and then: answers by HTTP, sends nothing, or resets them.
_SERVERS = {
    "http": (
        f"import http.server as h; h.ThreadingHTTPServer(('', {PORT}),"
        " h.SimpleHTTPRequestHandler).serve_forever()"
    ),
    "silent": (
        "import socket, time\n"
        f"s = socket.create_server(('', {PORT}))\n"
        "k = []\n"
        "while True: k.append(s.accept())"
    ),
    "resetting": (
        f"import socket, struct\ns = socket.create_server(('', {PORT}))\nwhile True:\n c, _ = s.accept()\n"
        " c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))\n c.close()"
    ),
    "ssh": (
        f"import socket\ns = socket.create_server(('', {PORT}))\nwhile True:\n c, _ = s.accept()\n"
        " c.sendall(b'SSH-2.0-OpenSSH_9.2\\r\\n')"
    ),
    "tls": (
        f"import socket\ns = socket.create_server(('', {PORT}))\nwhile True:\n c, _ = s.accept()\n"
        " c.recv(64); c.sendall(bytes((21, 3, 1, 0, 2, 2, 70))); c.close()"
    ),
    "store": (
        f"import socket, struct, threading\ns = socket.create_server(('', {PORT}))\n"
        "def serve(c):\n"
        " while c.recv(256): c.sendall(struct.pack('<I', 4242))\n"
        "while True:\n c, _ = s.accept(); threading.Thread(target=serve, args=(c,), daemon=True).start()"
    ),
}


def _server(machine: int, kind: str) -> Arrange:
    """Such a server on that machine, counted from 1."""

    @contextlib.contextmanager
    def arrange(machines: Sequence[Machine]) -> Iterator[None]:
        command = machines[machine - 1].command(sys.executable, "-c", _SERVERS[kind])
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            yield
        finally:
            process.kill()
            process.wait()

    return arrange


def _listed(kind: str) -> Arrange:
    """On all machines rank 0's name has machine4's address first, and such a server is there."""

    @contextlib.contextmanager
    def arrange(machines: Sequence[Machine]) -> Iterator[None]:
        for machine in machines:
            hosts = Path("/etc/netns") / machine.namespace / "hosts"
            lines = [line for line in hosts.read_text().splitlines() if line.split()[-1] != "machine1"]
            names = ("198.18.77.4 machine1", "198.18.77.1 machine1")
            hosts.write_text("\n".join([*lines, *names]) + "\n")
        with _server(4, kind)(machines):
            yield

    return arrange


def _all(start: Start, but: Mapping[int, Start] | None = None) -> dict[int, Start]:
    return {**dict.fromkeys(range(4), start), **(but or {})}


CASES = (
    # --- another address or port on some
    blamed(
        "split: rank 2 has another port",
        {2: at("machine1", _ELSEWHERE)},
        ("machine3 uses machine1:29501", "29500"),
        3,
    ),
    blamed(
        "split: rank 2 has another address",
        {2: at("machine4")},
        ("machine3 uses machine4:29500", "the others machine1:29500"),
        3,
    ),
    blamed(
        "split: rank 3 has its own address",
        {3: at("machine4")},
        ("machine4 uses machine4:29500", "machine1:29500"),
        4,
    ),
    blamed(
        "split: rank 1 has a loopback address",
        {1: at("127.0.0.1")},
        ("machine2 uses 127.0.0.1:29500", "machine1:29500"),
        2,
    ),
    blamed(
        "split: rank 0 has another port",
        {0: at("machine1", _ELSEWHERE)},
        ("rank 0 on machine1 uses machine1:29501", "machine1:29500"),
        1,
    ),
    blamed(
        "split: ranks 2 and 3 have another address and port",
        {2: at("machine3", _ELSEWHERE), 3: at("machine3", _ELSEWHERE)},
        ("ranks 2 and 3 on machine3, machine4 use machine3:29501", "machine1:29500"),
        3,
    ),
    blamed(
        "split: three ranks have a machine that is not rank 0's",
        dict.fromkeys((1, 2, 3), at("machine2")),
        ("use machine2:29500", "the others machine1:29500"),
        2,
    ),
    blamed(
        "split: rank 2 has an address that is nobody's",
        {2: at("198.18.77.77")},
        ("machine3 uses 198.18.77.77:29500", "machine1:29500"),
        3,
    ),
    blamed(
        "split: a name has another address on machine4",
        _names(4, machine1="198.18.77.2"),
        ("machine4 uses machine1:29500 at 198.18.77.2", "198.18.77.1"),
        4,
    ),
    # --- all at a machine that is not rank 0's
    blamed(
        "split: all look at machine3, and rank 0 is on machine1",
        _all(at("machine3")),
        ("rank 0 runs on machine1", "machine3:29500"),
        1,
    ),
    blamed(
        "split: all look at an address of nobody",
        _all(at("198.18.77.77")),
        ("rank 0 runs on machine1", "198.18.77.77:29500"),
        1,
    ),
    # --- machines that receive announcements and get no connection; machines that receive none of rank 0's
    blamed(
        "split: machine1 takes no TCP from machine3",
        _filtered(1, "ip saddr 198.18.77.3 ip protocol tcp drop"),
        ("rank 2 cannot reach rank 0", "machine1 (198.18.77.1) does not answer on port 29500"),
        3,
    ),
    blamed(
        "split: rank 0 is not started",
        {0: Start(missing=True)},
        ("rank 0 never arrived", "nothing listens on port 29500"),
        1,
        flags=("--rendezvous-timeout", "15"),
    ),
    # --- the same rank twice, two jobs
    blamed("split: two ranks 0", {1: _as(0)}, ("rank 1", "rank 0 on machine1 and on machine2")),
    blamed(
        "split: two jobs of two ranks on one port",
        {0: _as(0, 2), 1: _as(1, 2), 2: _as(0, 2), 3: _as(1, 2)},
        ("two jobs", "machine1:29500"),
    ),
    # --- the settings of one process
    blamed(
        "split: WORLD_SIZE is larger on machine3",
        {2: _as(2, 5)},
        ("machine3", "WORLD_SIZE 5", "the others with 4"),
        3,
    ),
    blamed(
        "split: WORLD_SIZE is larger on machine1",
        {0: _as(0, 5)},
        ("machine1", "WORLD_SIZE 5", "the others with 4"),
        1,
    ),
    blamed(
        "split: MASTER_ADDR is not set on machine3",
        {2: Start(variables={"MASTER_ADDR": None})},
        ("machine3", "MASTER_ADDR"),
        3,
        launcher="env",
    ),
    blamed(
        "split: MASTER_PORT is no number on machine4",
        {3: Start(variables={"MASTER_PORT": "29500x"})},
        ("machine4", "MASTER_PORT=29500x"),
        4,
        launcher="env",
    ),
    blamed("split: MASTER_ADDR is misspelt on machine3", {2: at("machine9")}, ("machine3", "machine9"), 3),
    *(
        blamed(
            f"split: {files} open files on machine2",
            {1: Start(wrapper=("sh", "-c", f'ulimit -n {files}; exec "$@"', "sh"))},
            ("machine2", "open files"),
            2,
        )
        for files in (8, 12, 16, 24, 32)
    ),
    blamed(
        "split: RANK=0 was left in the shell of srun",
        _all(Start(variables={"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0"})),
        ("RANK=0 contradicts srun",),
        2,
        3,
        4,
        launcher="srun",
    ),
    # --- at a file
    blamed(
        "split: file: rank 1 never comes to the file",
        {0: _at_file(2), **dict.fromkeys((1, 2, 3), Start(missing=True))},
        ("rank 1 never arrived",),
        flags=("--rendezvous-timeout", "15"),
    ),
    Case("split: healthy: file: four machines", starts=_all(_at_file(4))),
    Case(
        "split: healthy: file: two machines, one 9 s late",
        starts={0: _at_file(2, 9), 1: _at_file(2), **dict.fromkeys((2, 3), Start(missing=True))},
    ),
    # --- other servers
    *(
        blamed(
            f"split: a {kind} server where rank 2 looks",
            _server(4, kind),
            ("machine3 uses machine4:29500", "machine1:29500", word),
            3,
            starts={2: at("machine4")},
        )
        for kind, word in (
            ("http", "HTTP"),
            ("silent", "sends nothing"),
            ("resetting", "resets connections"),
            ("ssh", "SSH-2.0"),
            ("tls", "which is no rendezvous of torch"),
            ("store", "a rendezvous of torch has port"),
        )
    ),
    *(
        blamed(
            f"split: a {kind} server where all look, and rank 0 is elsewhere",
            _server(4, kind),
            ("rank 0 runs on machine1", "machine4:29500", word),
            1,
            starts=_all(at("machine4")),
        )
        for kind, word in (
            ("http", "HTTP"),
            ("silent", "sends nothing"),
            ("resetting", "resets connections"),
        )
    ),
    *(
        blamed(
            f"split: a {kind} server at the first address of rank 0's name",
            _listed(kind),
            ("198.18.77.4", word),
        )
        for kind, word in (("http", "HTTP"), ("silent", "sends nothing"))
    ),
    *(
        blamed(
            f"split: a {kind} server has rank 0's port",
            _server(1, kind),
            ("29500", "another process has port"),
            1,
        )
        for kind in ("http", "silent")
    ),
    blamed(
        "split: a http server has rank 0's port, and rank 1 comes 4 s later than the others",
        _server(1, "http"),
        (str(PORT), "another server has port"),
        starts={0: Start(missing=True), 1: Start(delay_seconds=4)},
        flags=("--rendezvous-timeout", "30"),
    ),
    # --- healthy
    Case(
        "split: healthy: a server at the first address of rank 0's name resets connections",
        arrange=_listed("resetting"),
    ),
    Case("split: healthy: rank 0 has a loopback address", starts={0: at("localhost")}),
    Case(
        "split: healthy: rank 0 has a loopback address, and no interface is named",
        starts=_all(
            Start(variables={"GLOO_SOCKET_IFNAME": None}),
            {0: Start(variables={"GLOO_SOCKET_IFNAME": None}, meets=f"localhost:{PORT}")},
        ),
    ),
    Case("split: healthy: one rank has the address instead of the name", starts={2: at("198.18.77.1")}),
    Case("split: healthy: rank 0 has the address instead of the name", starts={0: at("198.18.77.1")}),
    Case(
        "split: healthy: rank 2 has the address, and rank 0 comes 9 s late",
        starts={2: at("198.18.77.1"), 0: Start(delay_seconds=9)},
    ),
)
