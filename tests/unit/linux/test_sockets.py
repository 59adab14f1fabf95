"""TCP sockets and addresses of this machine, as /proc and netlink show them."""

import os
import socket
import struct

import pytest

from gpudiag.linux.interfaces import list_addresses
from gpudiag.linux.netlink import ask_all, parse_attributes
from gpudiag.linux.proc import socket_inodes
from gpudiag.linux.sockets import (
    ESTABLISHED,
    LISTENING,
    format_address,
    listening_ports,
    parse_address,
    read_network_namespace,
    read_tcp_sockets,
)


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_a_connection_is_seen_from_both_ends_and_its_listener(family: int, host: str) -> None:
    if family == socket.AF_INET6 and not os.path.exists("/proc/net/if_inet6"):
        pytest.skip("no IPv6 here")
    with socket.create_server((host, 0), family=family) as server:
        port = server.getsockname()[1]
        with socket.create_connection((host, port)) as client:
            own = {one.inode: one for one in read_tcp_sockets("self")}
            at_server, at_client = (
                own[os.fstat(server.fileno()).st_ino],
                own[os.fstat(client.fileno()).st_ino],
            )
            assert (at_server.state, at_server.local, at_server.local_port) == (LISTENING, (host, port), port)
            assert (at_client.state, at_client.remote, at_client.remote_port) == (
                ESTABLISHED,
                (host, port),
                port,
            )
            assert at_client.local == client.getsockname()[:2]
            assert listening_ports(os.getpid())[at_server.inode] == port
            assert {at_server.inode, at_client.inode} <= socket_inodes(os.getpid())


def test_an_address_of_ipv4_within_ipv6_is_one_of_ipv4() -> None:
    mapped = struct.pack("=4I", *struct.unpack("=4I", socket.inet_pton(socket.AF_INET6, "::ffff:10.0.0.2")))
    words = "".join(f"{word:08X}" for word in struct.unpack("=4I", mapped))
    assert parse_address(f"{words}:01BB") == ("10.0.0.2", 443)
    assert [format_address(one) for one in (("10.0.0.2", 443), ("::1", 80))] == ["10.0.0.2:443", "[::1]:80"]


def test_a_process_that_is_gone_has_no_sockets_and_no_namespace() -> None:
    gone = 1 << 22  # above every pid (proc_sys_kernel(5))
    assert list(read_tcp_sockets(gone)) == []
    assert read_network_namespace(gone) == ""
    assert read_network_namespace("self") == os.readlink("/proc/self/ns/net")


def test_the_loopback_address_is_among_this_machines() -> None:
    assert ("lo", "127.0.0.1", 8) in {(one.interface, one.address, one.prefix) for one in list_addresses()}


def test_a_question_that_the_kernel_does_not_know_is_an_error() -> None:
    with pytest.raises(OSError, match="netlink refuses"):
        list(ask_all(0, 0x7F0, b"\0" * 4))


def test_attributes_are_found_up_to_the_first_that_is_damaged() -> None:
    whole = struct.pack("=HH3sx", 7, 1, b"abc") + struct.pack("=HHI", 8, 2, 5)
    assert parse_attributes(whole) == {1: b"abc", 2: struct.pack("=I", 5)}
    assert parse_attributes(whole + struct.pack("=HH", 0, 3) + whole) == parse_attributes(whole)
