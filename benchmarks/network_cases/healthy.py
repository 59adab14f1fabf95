"""Networks and starts with which nothing is wrong: nobody is blamed, and every rank ends with 0."""

import contextlib
import itertools
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.network_cases.case import Arrange, Case, Start
from tests.ranks.machines import Machine

_RENDEZVOUS = ("--rendezvous-timeout", "150")  # longer than the last rank is late
_SECOND_NETWORK = "198.18.78"
_IPV6 = "fd00:77::"


def inside(machine: Machine, *words: str) -> None:
    """Run that command on that machine."""
    subprocess.run(
        ("ip", "netns", "exec", machine.namespace, *words), check=True, capture_output=True, text=True
    )


def add_names(machine: Machine, *lines: str, first: bool = False) -> None:
    """Add lines to the machine's table of names, before or after those that it has."""
    hosts = Path("/etc/netns") / machine.namespace / "hosts"
    before = hosts.read_text()
    new = "\n".join(lines) + "\n"
    hosts.write_text(new + before if first else before + new)


def dead_ipv6(*ranks: int, silent: bool) -> Arrange:
    """On the machines of those ranks machine1 has an IPv6 address first: nobody has it, or it is `silent`.

    torch goes on to the next address only where it learns that there is no way to the first one.
    """

    @contextlib.contextmanager
    def arrange(machines: Sequence[Machine]) -> Iterator[None]:
        dead = f"{_IPV6}{'1' if silent else '99'}"
        for number, machine in enumerate(machines, start=1):
            inside(machine, "ip", "address", "add", f"{_IPV6}{number}/64", "dev", "eth0", "nodad")
        if silent:
            inside(machines[0], "nft", "add", "table", "ip6", "silent")
            chain = "{ type filter hook input priority 0; }"
            inside(machines[0], "nft", "add", "chain", "ip6", "silent", "in", chain)
            inside(machines[0], "nft", "add", "rule", "ip6", "silent", "in", "meta", "l4proto", "tcp", "drop")
        for rank in ranks:
            add_names(machines[rank], f"{dead} machine1", first=True)
        yield

    return arrange


@contextlib.contextmanager
def _two_interfaces(machines: Sequence[Machine]) -> Iterator[None]:
    """Each machine has a second network, whose addresses have no names; no setting chooses one."""
    switch = f"{machines[0].namespace.removesuffix('m1')}sw"
    subprocess.run(("ip", "-n", switch, "link", "add", "br1", "type", "bridge"), check=True)
    subprocess.run(("ip", "-n", switch, "link", "set", "br1", "up"), check=True)
    for number, machine in enumerate(machines, start=1):
        other = ("peer", "name", "eth1", "netns", machine.namespace)
        port = f"q{number}"
        subprocess.run(("ip", "-n", switch, "link", "add", port, "type", "veth", *other), check=True)
        subprocess.run(("ip", "-n", switch, "link", "set", port, "master", "br1", "up"), check=True)
        inside(machine, "ip", "address", "add", f"{_SECOND_NETWORK}.{number}/24", "dev", "eth1")
        inside(machine, "ip", "link", "set", "eth1", "up")
    yield


@contextlib.contextmanager
def _docker_bridges(machines: Sequence[Machine]) -> Iterator[None]:
    """Each machine has a bridge of its own with the same address, as Docker makes it."""
    for machine in machines:
        inside(machine, "ip", "link", "add", "docker0", "type", "bridge")
        inside(machine, "ip", "address", "add", "172.17.0.1/16", "dev", "docker0")
        inside(machine, "ip", "link", "set", "docker0", "up")
    yield


@contextlib.contextmanager
def _no_icmp(machines: Sequence[Machine]) -> Iterator[None]:
    """No machine answers a ping, or reports that a port is closed to UDP."""
    for machine in machines:
        inside(machine, "nft", "add", "table", "inet", "quiet")
        chain = "{ type filter hook input priority 0; }"
        inside(machine, "nft", "add", "chain", "inet", "quiet", "in", chain)
        inside(machine, "nft", "add", "rule", "inet", "quiet", "in", "ip", "protocol", "icmp", "drop")
    yield


def _everywhere(start: Start) -> dict[int, Start]:
    return dict.fromkeys(range(4), start)


def _late(**delays: float) -> dict[int, Start]:
    return {int(name.removeprefix("rank")): Start(delay_seconds=delay) for name, delay in delays.items()}


# The clock that nothing sets, ahead by hours, as on a machine that was started earlier.
_AHEAD = ("unshare", "--time", "--monotonic", "20000", "--fork")

CASES = (
    Case("healthy"),
    *(
        Case(f"rank {rank} comes {delay} s late", starts={rank: Start(delay_seconds=delay)})
        for delay in (1, 9, 30)
        for rank in range(4)
    ),
    *(
        Case(
            f"rank {rank} comes 100 s late",
            starts={rank: Start(delay_seconds=100)},
            flags=_RENDEZVOUS,
        )
        for rank in range(4)
    ),
    *(
        Case(
            f"ranks come one by one, {' '.join(map(str, order))}",
            starts={
                rank: Start(delay_seconds=delay) for rank, delay in zip(order, (0, 1, 9, 30), strict=True)
            },
        )
        for order in itertools.permutations(range(4))
    ),
    Case(
        "the wait restarts with each rank",
        starts=_late(rank1=8, rank3=16, rank2=24),
        flags=("--rendezvous-timeout", "14"),
    ),
    Case("IPv6 of nobody before IPv4 on one machine", arrange=dead_ipv6(2, silent=False)),
    Case("IPv6 of nobody before IPv4 on all machines", arrange=dead_ipv6(1, 2, 3, silent=False)),
    Case(
        "IPv6 of nobody before IPv4, and rank 0 comes 9 s late",
        arrange=dead_ipv6(1, 2, 3, silent=False),
        starts=_late(rank0=9),
    ),
    Case("two interfaces", arrange=_two_interfaces),
    Case(
        "two interfaces, and none is named",
        arrange=_two_interfaces,
        starts=_everywhere(Start(variables={"GLOO_SOCKET_IFNAME": None})),
    ),
    Case("docker bridges", arrange=_docker_bridges),
    Case(
        "docker bridges, and no interface is named",
        arrange=_docker_bridges,
        starts=_everywhere(Start(variables={"GLOO_SOCKET_IFNAME": None})),
    ),
    Case("no ICMP", arrange=_no_icmp),
    Case("no ICMP, and rank 0 comes 9 s late", arrange=_no_icmp, starts=_late(rank0=9)),
    Case("one clock is hours ahead", starts={2: Start(wrapper=_AHEAD)}),
    Case("rank 0's clock is hours ahead", starts={0: Start(wrapper=_AHEAD)}),
)
