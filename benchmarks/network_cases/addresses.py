"""Hosts whose ranks give others an address that leads nowhere, and hosts with several good ones."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.network_cases.case import Arrange, Case, Start, blamed
from tests.ranks.machines import Machine, add_address, add_interface

UNSET = {"GLOO_SOCKET_IFNAME": None}
AS_ON_THE_OTHERS = "as on the others"


def name_as(machine: Machine, machines: Sequence[Machine], address: str | None) -> None:
    """Let that machine's own name resolve to the address there, or to nothing."""
    lines = ["127.0.0.1 localhost", *(f"{one.address} {one.name}" for one in machines if one is not machine)]
    if address is not None:
        lines.append(f"{address} {machine.name}")
    (Path("/etc/netns") / machine.namespace / "hosts").write_text("\n".join(lines) + "\n")


def with_interfaces(name: str, *, only: int | None = None, base: str = "10.9.0.{}/24") -> Arrange:
    """An interface of that name on every machine, or on one, whose network joins nobody."""

    @contextlib.contextmanager
    def arrange(machines: Sequence[Machine]) -> Iterator[None]:
        for number, machine in enumerate(machines, 1):
            if only is None or only == number - 1:
                add_interface(machine, name, base.format(number))
        yield

    return arrange


def with_name(rank: int, address: str | None, interface: str = "") -> Arrange:
    """The name of that rank's machine resolves to the address, of an interface if one is given."""

    @contextlib.contextmanager
    def arrange(machines: Sequence[Machine]) -> Iterator[None]:
        if interface:
            add_interface(machines[rank], interface, f"{address}/24")
        name_as(machines[rank], machines, address)
        yield

    return arrange


@contextlib.contextmanager
def ipv6_beside(machines: Sequence[Machine]) -> Iterator[None]:
    """machine3's name is an address of IPv6 that all reach."""
    for number, machine in enumerate(machines, 1):
        add_address(machine, "eth0", f"fd00:77::{number}/64")
    name_as(machines[2], machines, "fd00:77::3")
    yield


@contextlib.contextmanager
def ipv6_only_interface(machines: Sequence[Machine]) -> Iterator[None]:
    """An interface eth6 of machine3 that has an address of IPv6 alone."""
    add_interface(machines[2], "eth6", "fd00:66::3/64")
    yield


@contextlib.contextmanager
def docker_bridges(machines: Sequence[Machine]) -> Iterator[None]:
    """A bridge docker0 with the same address on every machine."""
    for machine in machines:
        add_interface(machine, "docker0", "172.17.0.1/16")
    yield


@contextlib.contextmanager
def second_network(machines: Sequence[Machine]) -> Iterator[None]:
    """A second network eth1 that joins all machines, on the same switch."""
    for number, machine in enumerate(machines, 1):
        add_interface(machine, "eth1", f"198.18.78.{number}/24", joined=True)
    yield


@contextlib.contextmanager
def greater_address(machines: Sequence[Machine]) -> Iterator[None]:
    """machine3's name is an address of a network of its own, greater than all: no target."""
    add_interface(machines[2], "eth1", "203.0.113.3/24")
    name_as(machines[2], machines, "203.0.113.3")
    yield


def _named(rank: int, interface: str | None) -> dict[int, Start]:
    return {rank: Start(variables={"GLOO_SOCKET_IFNAME": interface})}


_ALL_UNSET = {rank: Start(variables=UNSET) for rank in range(4)}
_ALL_SECOND = {rank: Start(variables={"GLOO_SOCKET_IFNAME": "eth1"}) for rank in range(4)}

CASES = (
    blamed(
        "address: an interface that does not exist",
        _named(2, "ib9"),
        ("GLOO_SOCKET_IFNAME=ib9", "right is eth0, 198.18.77.3", AS_ON_THE_OTHERS),
        3,
    ),
    blamed(
        "address: an interface that does not exist, rank 0",
        _named(0, "ens5f0"),
        ("GLOO_SOCKET_IFNAME=ens5f0", "right is eth0, 198.18.77.1", AS_ON_THE_OTHERS),
        1,
    ),
    blamed(
        "address: gloo on lo",
        _named(1, "lo"),
        ("GLOO_SOCKET_IFNAME=lo", "127.0.0.1", "right is eth0, 198.18.77.2", AS_ON_THE_OTHERS),
        2,
    ),
    blamed(
        "address: a network of its own, a lower address",
        with_interfaces("eth1"),
        ("GLOO_SOCKET_IFNAME=eth1", "10.9.0.4", "right is eth0, 198.18.77.4", AS_ON_THE_OTHERS),
        4,
        starts=_named(3, "eth1"),
    ),
    blamed(
        "address: a network of its own, one machine alone",
        with_interfaces("eth1", only=2),
        ("GLOO_SOCKET_IFNAME=eth1", "10.9.0.3", "right is eth0, 198.18.77.3", AS_ON_THE_OTHERS),
        3,
        starts=_named(2, "eth1"),
    ),
    blamed(
        "address: all on the second network, one on the first",
        second_network,
        ("eth9", "right is eth1, 198.18.78.3", AS_ON_THE_OTHERS),
        3,
        starts={**_ALL_SECOND, 2: Start(variables={"GLOO_SOCKET_IFNAME": "eth9"})},
    ),
    blamed(
        "address: docker's bridge",
        docker_bridges,
        ("GLOO_SOCKET_IFNAME=docker0", "172.17.0.1", "right is eth0, 198.18.77.3", AS_ON_THE_OTHERS),
        3,
        starts=_named(2, "docker0"),
    ),
    blamed(
        "address: an interface with IPv6 only",
        ipv6_only_interface,
        ("GLOO_SOCKET_IFNAME=eth6", "fd00:66::3", "right is eth0, 198.18.77.3", AS_ON_THE_OTHERS),
        3,
        starts=_named(2, "eth6"),
    ),
    blamed(
        "address: the own name is one of IPv6 among IPv4",
        ipv6_beside,
        ("machine3", "fd00:77::3", "IPv4", "right is eth0, 198.18.77.3", AS_ON_THE_OTHERS),
        3,
        starts=_ALL_UNSET,
    ),
    blamed(
        "address: the own name is 127.0.1.1",
        with_name(2, "127.0.1.1"),
        ("127.0.1.1", "right is eth0, 198.18.77.3", AS_ON_THE_OTHERS),
        3,
        starts=_ALL_UNSET,
    ),
    blamed(
        "address: the own name is unknown",
        with_name(1, None),
        ("machine2", "127.0.0.1", "right is eth0, 198.18.77.2", AS_ON_THE_OTHERS),
        2,
        starts=_ALL_UNSET,
    ),
    blamed(
        "address: the own name is another machine's",
        with_name(2, "10.66.0.3"),
        ("10.66.0.3", "right is eth0, 198.18.77.3", AS_ON_THE_OTHERS),
        3,
        starts=_ALL_UNSET,
    ),
    blamed(
        "address: the own name is of another network",
        with_name(1, "10.9.0.2", "eth1"),
        ("10.9.0.2", "right is eth0, 198.18.77.2", AS_ON_THE_OTHERS),
        2,
        starts=_ALL_UNSET,
    ),
    blamed(
        "address: rank 0's own name is 127.0.1.1",
        with_name(0, "127.0.1.1"),
        ("127.0.1.1", "right is eth0, 198.18.77.1"),
        1,
        starts={rank: Start(variables=UNSET, flags=()) for rank in range(4)},
    ),
    Case("healthy address: docker's bridge on all", docker_bridges, starts=_ALL_UNSET),
    Case("healthy address: a second interface that leads nowhere", with_interfaces("eth1")),
    Case("healthy address: names, and a second interface", with_interfaces("eth1"), starts=_ALL_UNSET),
    Case("healthy address: two networks, the second is used", second_network, starts=_ALL_SECOND),
    Case("healthy address: two networks, one machine on the other", second_network, starts=_named(2, "eth1")),
    Case("healthy address: IPv6 on one machine only", ipv6_only_interface, starts=_ALL_UNSET),
    Case(
        "healthy address: nobody connects to the one that leads nowhere", greater_address, starts=_ALL_UNSET
    ),
)
