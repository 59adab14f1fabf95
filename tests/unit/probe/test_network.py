import os
import socket

import pytest

from gpudiag.probe.host.interfaces import (
    interface_of,
    parse_if_inet6,
    parse_local_addresses,
    parse_routes,
    read_addresses,
    read_interfaces,
)

FIB_TRIE = """Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 10.20.0.0/16 2 0 2
        |-- 10.20.0.0
           /16 link UNICAST
        |-- 10.20.0.11
           /32 host LOCAL
     +-- 127.0.0.0/8 2 0 2
        |-- 127.0.0.1
           /32 host LOCAL
Local:
  +-- 0.0.0.0/0 3 0 5
        |-- 10.20.0.11
           /32 host LOCAL
"""
ROUTE = """Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT
eth0\t00000000\t0100140A\t0003\t0\t0\t0\t00000000\t0\t0\t0
eth1\t0000140A\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
"""
IF_INET6 = "fe800000000000009640c9fffe5e1a01 02 40 20 80     eth1\n"


@pytest.fixture
def root(tmp_path):
    for name, flags, state in (("lo", "0x9", "unknown"), ("eth1", "0x1003", "up"), ("ib0", "0x1002", "down")):
        directory = tmp_path / "sys/class/net" / name
        directory.mkdir(parents=True)
        for file, text in (("flags", flags), ("operstate", state), ("mtu", "1500"), ("speed", "-1")):
            (directory / file).write_text(f"{text}\n")
    (tmp_path / "sys/class/net/eth1/speed").write_text("200000\n")
    (tmp_path / "sys/class/net/bonding_masters").write_text("")  # a file, no interface
    (tmp_path / "proc/net").mkdir(parents=True)
    (tmp_path / "proc/net/fib_trie").write_text(FIB_TRIE)
    (tmp_path / "proc/net/route").write_text(ROUTE)
    (tmp_path / "proc/net/if_inet6").write_text(IF_INET6)
    return str(tmp_path)


def test_interfaces_have_their_state_speed_and_addresses(root):
    interfaces = {interface["name"]: interface for interface in read_interfaces(root)}
    assert list(interfaces) == ["eth1", "ib0", "lo"]
    assert [interfaces[name]["up"] for name in ("eth1", "ib0", "lo")] == [True, False, True]
    assert interfaces["lo"]["loopback"] is True
    assert interfaces["eth1"]["speed_mbit_per_second"] == 200000
    assert interfaces["ib0"]["missing"] == {"speed_mbit_per_second": "not_supported"}
    assert interfaces["eth1"]["addresses"] == ["10.20.0.11", "fe80::9640:c9ff:fe5e:1a01"]
    assert interfaces["lo"]["addresses"] == ["127.0.0.1"]


def test_local_addresses_are_listed_once():
    assert parse_local_addresses(FIB_TRIE) == ["10.20.0.11", "127.0.0.1"]


@pytest.mark.parametrize(
    ("address", "interface"), [("10.20.3.4", "eth1"), ("192.0.2.1", "eth0"), ("127.0.1.1", "lo")]
)
def test_an_address_belongs_to_the_narrowest_route(address, interface):
    assert interface_of(address, parse_routes(ROUTE)) == interface


def test_an_address_without_a_route_belongs_to_no_interface():
    assert interface_of("192.0.2.1", []) is None


def test_ipv6_addresses_are_written_short():
    assert parse_if_inet6(IF_INET6) == [("eth1", "fe80::9640:c9ff:fe5e:1a01")]


def test_a_machine_without_network_files_has_no_addresses(tmp_path):
    assert read_addresses(str(tmp_path)) == {}


def test_the_kernel_is_asked_on_this_machine():
    addresses = read_addresses()
    assert "127.0.0.1" in addresses["lo"]
    assert set(addresses) <= {name for _, name in socket.if_nameindex()}


@pytest.mark.skipif(
    not os.path.exists("/proc/net/fib_trie"), reason="this kernel shows no /proc/net/fib_trie"
)
def test_files_and_kernel_agree_on_this_machine():
    from_files = {address for listed in read_addresses(f"{os.sep}.").values() for address in listed}
    from_kernel = {address for listed in read_addresses().values() for address in listed}
    assert from_files == from_kernel
