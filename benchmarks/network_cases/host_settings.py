"""Hosts whose own network is set up otherwise than the others': routes, names, addresses, ports, limits."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.network_cases.case import Arrange, Case, Start, blamed
from benchmarks.network_cases.firewalls import closed
from benchmarks.network_cases.healthy import inside
from benchmarks.network_cases.links import Act, arranged, filter_at
from tests.ranks.machines import Machine, add_interface, bridge_port, switch_of

_SOON = ("--rendezvous-timeout", "20")


def _do(rank: int, *commands: str) -> Act:
    """On that rank's machine, these commands."""

    def act(machines: Sequence[Machine]) -> None:
        for command in commands:
            inside(machines[rank], "sh", "-c", command)

    return act


def _everywhere(*commands: str) -> Act:
    def act(machines: Sequence[Machine]) -> None:
        for rank in range(len(machines)):
            _do(rank, *commands)(machines)

    return act


def _at_switch(rank: int, *settings: str) -> Act:
    """The port of that rank's machine at the switch."""

    def act(machines: Sequence[Machine]) -> None:
        machine = machines[rank]
        words = ("ip", "-n", switch_of(machine), "link", "set", bridge_port(machine), *settings)
        subprocess.run(words, check=True)

    return act


def _interface(rank: int, name: str, *addresses: str, joined: bool = False) -> Act:
    def act(machines: Sequence[Machine]) -> None:
        add_interface(machines[rank], name, *addresses, joined=joined)

    return act


def _jumbo_at_switch(machines: Sequence[Machine]) -> None:
    for rank in range(len(machines)):
        _at_switch(rank, "mtu", "9000")(machines)


def _address(rank: int, *addresses: str) -> Act:
    """That rank's machine has these addresses in place of its own."""
    return _do(rank, "ip addr flush dev eth0", *(f"ip addr add {one} dev eth0" for one in addresses))


def _bridge(rank: int, name: str, address: str, *routes: str) -> Act:
    """A bridge of that rank's machine that leads to nobody, with routes to it."""
    made = (f"ip link add {name} type bridge", f"ip addr add {address} dev {name}", f"ip link set {name} up")
    return _do(rank, *made, *(f"ip route add {one} dev {name}" for one in routes))


_RESOLVER = """
import socket, struct, sys, threading, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(("", 53))
def serve(q, a):
    time.sleep(float(sys.argv[1]))
    end = q.index(0, 12) + 5; v4 = q[end - 4:end - 2] == bytes((0, 1))
    head = q[:2] + struct.pack(">HHHHH", 0x8180, 1, int(v4), 0, 0) + q[12:end]
    body = bytes((0xC0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 198, 18, 77, 1)) if v4 else b""
    s.sendto(head + body, a)
while True: threading.Thread(target=serve, args=s.recvfrom(512), daemon=True).start()
"""


def _resolver(rank: int, seconds: float | None, *, silent: bool = True) -> Arrange:
    """machine1's name is not in that machine's table; the resolver takes so long, or never replies.

    Without `silent` the host of the resolver refuses.
    """

    @contextlib.contextmanager
    def arrange(machines: Sequence[Machine]) -> Iterator[None]:
        folder = Path("/etc/netns") / machines[rank].namespace
        lines = [one for one in (folder / "hosts").read_text().splitlines() if "machine1" not in one]
        (folder / "hosts").write_text("\n".join(lines) + "\n")
        (folder / "resolv.conf").write_text("nameserver 198.18.77.4\noptions timeout:5 attempts:2\n")
        if seconds is None:
            filter_at(machines[3], *(("in udp dport 53 drop",) * silent))
            yield
            return
        command = machines[3].command(sys.executable, "-c", _RESOLVER, str(seconds))
        server = subprocess.Popen(command)
        try:
            yield
        finally:
            server.kill()
            server.wait()

    return arrange


_NO_LOW_PORTS = ("setpriv", "--bounding-set", "-net_bind_service", "--inh-caps", "-net_bind_service")


def _called(name: str) -> Start:
    return Start(wrapper=("sh", "-c", f'hostname {name} && exec "$@"', "sh"))


_CONFLICT = "network.setup_conflict"
CASES = (
    blamed(
        "host: a netmask that leaves out the others",
        arranged(_address(2, "198.18.77.3/31")),
        ("no route", "machine3"),
        3,
        flags=_SOON,
    ),
    blamed(
        "host: a netmask that leaves out everybody",
        arranged(_address(1, "198.18.77.2/32")),
        ("no route", "machine2"),
        2,
        flags=_SOON,
    ),
    blamed(
        "host: a container's bridge has another host's network",
        arranged(_bridge(2, "docker0", "198.18.77.5/30")),
        (_CONFLICT, "machine4", "docker0"),
        3,
        flags=_SOON,
    ),
    blamed(
        "host: a tunnel takes the others' network",
        arranged(_bridge(2, "tun0", "10.8.0.3/24", "198.18.77.0/25")),
        ("tun0",),
        3,
        flags=_SOON,
    ),
    blamed(
        "host: a tunnel takes what is for another host, on rank 0's",
        arranged(_bridge(0, "tun0", "10.8.0.1/24", "198.18.77.2/32")),
        ("tun0", "machine2"),
        1,
        flags=_SOON,
    ),
    blamed(
        "host: another one's address too",
        arranged(_do(2, "ip addr add 198.18.77.4/24 dev eth0")),
        (_CONFLICT, "machine4", "198.18.77.4"),
        3,
        flags=_SOON,
    ),
    blamed(
        "host: an old entry of its neighbour",
        arranged(_do(1, "ip neigh replace 198.18.77.4 lladdr 02:00:00:00:00:99 dev eth0 nud permanent")),
        ("machine2 and machine4 do not reach each other",),
        2,
        4,
        flags=_SOON,
    ),
    blamed(
        "host: large packets to it alone are lost from the start",
        closed(2, "iifname eth0 ip length > 1000 drop"),
        ("network.large_packets_lost", "machine3"),
        3,
    ),
    blamed(
        "host: jumbo frames everywhere but at its switch port",
        arranged(_jumbo_at_switch, _everywhere("ip link set eth0 mtu 9000"), _at_switch(2, "mtu", "1500")),
        ("network.large_packets_lost", "machine3"),
        3,
    ),
    blamed(
        "host: its resolver is silent",
        _resolver(2, None),
        ("machine1", "rendezvous.wrong_address"),
        3,
        flags=_SOON,
    ),
    blamed(
        "host: nobody listens at its resolver's port",
        _resolver(1, None, silent=False),
        ("machine1", "has no address"),
        2,
        flags=_SOON,
    ),
    blamed(
        "host: rank 0 may not take a port below 1024",
        {rank: Start(meets="machine1:80", wrapper=_NO_LOW_PORTS) for rank in range(4)},
        ("machine1", "80", "ermission"),
        1,
        flags=_SOON,
    ),
    blamed(
        "host: takes six connections at most",
        closed(0, "iifname eth0 tcp flags & (syn|ack) == syn ct count over 6 drop"),
        ("machine1", "no answer"),
        1,
        flags=_SOON,
    ),
    blamed(
        "host: rank 0's netmask leaves out everybody",
        arranged(_address(0, "198.18.77.1/31")),
        ("no answer",),
        1,
        flags=_SOON,
    ),
    blamed(
        "host: a container's bridge on rank 0's has the network of all",
        arranged(_bridge(0, "docker0", "198.18.77.6/29")),
        ("docker0",),
        1,
        flags=_SOON,
    ),
    blamed(
        "host: its routes prohibit another one",
        arranged(_do(1, "ip route add prohibit 198.18.77.4/32")),
        ("machine2 and machine4", "prohibited"),
        2,
        4,
        flags=_SOON,
    ),
    blamed(
        "host: what is for rank 0's leaves by an interface that leads nowhere",
        arranged(_interface(2, "eth1", "10.9.0.3/24"), _do(2, "ip route add 198.18.77.1/32 dev eth1")),
        ("eth1", "machine1"),
        3,
        flags=_SOON,
    ),
    blamed(
        "host: a pattern for gloo's interface",
        {3: Start(variables={"GLOO_SOCKET_IFNAME": "eth*"})},
        ("GLOO_SOCKET_IFNAME=eth*", "right is eth0, 198.18.77.4"),
        4,
    ),
    Case(
        "host: healthy: two interfaces in one network",
        arrange=arranged(_interface(2, "eth1", "198.18.77.103/24", joined=True)),
    ),
    Case("host: healthy: two hosts with one name", starts={1: _called("node"), 2: _called("node")}),
    Case("host: healthy: its resolver takes 3 s", arrange=_resolver(2, 3.0)),
    Case(
        "host: healthy: a hundred local ports, a short queue, 256 files",
        arrange=arranged(
            _everywhere("sysctl -qw net.ipv4.ip_local_port_range='40000 40099' net.core.somaxconn=4")
        ),
        starts=dict.fromkeys(range(4), Start(wrapper=("sh", "-c", 'ulimit -n 256; exec "$@"', "sh"))),
    ),
    Case(
        "host: healthy: three of four have jumbo frames",
        arrange=arranged(_jumbo_at_switch, *(_do(rank, "ip link set eth0 mtu 9000") for rank in (0, 1, 3))),
    ),
    Case(
        "host: healthy: goes out with another address",
        arrange=arranged(
            _do(
                2,
                "ip addr add 198.18.77.103/24 dev eth0",
                "nft add table ip n",
                "nft add chain ip n out '{ type nat hook postrouting priority 100; }'",
                "nft add rule ip n out oifname eth0 snat to 198.18.77.103",
            )
        ),
    ),
    Case(
        "host: healthy: sends by a second interface, and takes in by the first",
        arrange=arranged(
            _interface(2, "eth1", "198.18.78.3/24", joined=True),
            _do(
                2,
                "ip route del 198.18.77.0/24 dev eth0",
                "ip route add 198.18.77.0/24 dev eth1 src 198.18.77.3",
            ),
        ),
    ),
    Case(
        "host: healthy: a bridge with the others' network that came later",
        arrange=arranged(_bridge(1, "docker0", "198.18.77.200/24")),
    ),
    Case(
        "host: healthy: five new connections each second",
        arrange=closed(0, "iifname eth0 ct state new limit rate over 5/second burst 5 packets drop"),
    ),
)
