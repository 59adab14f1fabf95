"""Which address gloo and NCCL choose of a host's, by their own rules."""

import pytest

from gpudiag.model.published import HostAddresses, OwnInterface, gloo_addresses, nccl_addresses

LO = OwnInterface("lo", True, ("127.0.0.1/8", "::1/128"))
ETH0 = OwnInterface("eth0", False, ("198.18.77.3/24", "fe80::3%2/64"))
ETH1 = OwnInterface("eth1", False, ("10.9.0.3/24",))
ETH6 = OwnInterface("eth6", False, ("fd00:66::3/64",))
IB0 = OwnInterface("ib0", False, ("10.1.0.3/16",))
DOCKER = OwnInterface("docker0", False, ("172.17.0.1/16",))
ALL = (LO, DOCKER, ETH0, ETH1, ETH6)


def gloo(value: str = "", *own_name: str) -> list[tuple[str | None, str | None]]:
    variables = {"GLOO_SOCKET_IFNAME": value} if value else {}
    return [(one.interface, one.address) for one in gloo_addresses(variables, "a3", own_name, ALL)]


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("eth1", [("eth1", "10.9.0.3")]),
        ("eth0", [("eth0", "198.18.77.3")]),  # of IPv4 before one of IPv6
        ("eth6", [("eth6", "fd00:66::3")]),
        ("ib9", [("ib9", None)]),
        ("eth", [("eth", None)]),  # gloo takes whole names
        ("eth0,eth1", [("eth0", "198.18.77.3"), ("eth1", "10.9.0.3")]),
        ("lo", [("lo", "127.0.0.1")]),
    ],
)
def test_gloo_takes_the_first_address_of_each_interface_that_is_named(
    value: str, found: list[tuple[str, str | None]]
) -> None:
    assert gloo(value) == found


@pytest.mark.parametrize(
    ("own_name", "found"),
    [
        (("198.18.77.3",), ("eth0", "198.18.77.3")),
        (("10.66.0.1", "10.9.0.3"), ("eth1", "10.9.0.3")),  # the first that this machine has
        (("127.0.1.1",), ("lo", "127.0.1.1")),
        (("10.66.0.1",), ("lo", "127.0.0.1")),  # another machine's: torch falls back
        ((), ("lo", "127.0.0.1")),
        (("fd00:66::3",), ("eth6", "fd00:66::3")),
    ],
)
def test_else_it_takes_what_the_own_name_is_on_this_machine(
    own_name: tuple[str, ...], found: tuple[str, str]
) -> None:
    assert gloo("", *own_name) == [found]
    assert gloo("x", *own_name) == [found]  # torch looks at values of two letters and more


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("", ("eth0", "198.18.77.3")),  # no docker0, no lo
        ("eth", ("eth0", "198.18.77.3")),
        ("=eth1", ("eth1", "10.9.0.3")),
        ("^eth0,docker", ("lo", "127.0.0.1")),
        ("^eth0,docker,lo", ("eth1", "10.9.0.3")),
        ("eth6", ("eth6", "fd00:66::3")),
        ("ib", (None, None)),
    ],
)
def test_nccl_goes_by_prefixes(value: str, found: tuple[str | None, str | None]) -> None:
    variables = {"NCCL_SOCKET_IFNAME": value} if value else {}
    (one,) = nccl_addresses(variables, ALL)
    assert (one.interface, one.address) == found


def test_nccl_prefers_infiniband_and_obeys_the_family() -> None:
    assert nccl_addresses({}, (*ALL, IB0))[0].interface == "ib0"
    assert nccl_addresses({"NCCL_SOCKET_FAMILY": "AF_INET6"}, ALL)[0].address == "fe80::3%2"
    assert nccl_addresses({}, (LO, DOCKER))[0].interface == "docker0"


def test_a_host_knows_the_networks_of_its_addresses() -> None:
    host = HostAddresses(ALL, (), ())
    assert host.network_of("198.18.77.3") == "198.18.77.0/24"
    assert host.network_of("198.18.77.4") is None
    assert host.interface_in("10.9.0.0/24") == ("eth1", "10.9.0.3")
    assert host.interface_in("127.0.0.0/8") is None
    assert host.has("fd00:66::3")
    assert not host.has("127.0.0.1")
