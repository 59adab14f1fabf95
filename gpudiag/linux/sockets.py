"""TCP and UDP sockets by /proc/PID/net: those of all processes in that one's network namespace."""

import os
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from gpudiag.linux.proc import read_text

# TCP_ESTABLISHED, SYN_SENT, LISTEN of include/net/tcp_states.h.
ESTABLISHED, CONNECTING, LISTENING = (
    "01",
    "02",
    "0A",
)
_LOCAL, _REMOTE, _STATE, _INODE = 1, 2, 3, 9

Address = tuple[str, int]  # and port


class TcpSocket(NamedTuple):
    """A socket; addresses are parsed when they are asked for, as a table may be long."""

    local_words: str
    remote_words: str
    state: str
    inode: int

    @property
    def local(self) -> Address:
        """Its own address and port."""
        return parse_address(self.local_words)

    @property
    def remote(self) -> Address:
        """Address and port of the other end."""
        return parse_address(self.remote_words)

    @property
    def local_port(self) -> int:
        """Its own port."""
        return int(self.local_words.rpartition(":")[2], 16)

    @property
    def remote_port(self) -> int:
        """The port of the other end."""
        return int(self.remote_words.rpartition(":")[2], 16)


def read_tcp_sockets(process: int | str, root: str = "/proc") -> Iterator[TcpSocket]:
    """The sockets of the process's network namespace; none where it is gone or they may not be read."""
    yield from _read_sockets(process, ("tcp", "tcp6"), root)


def read_udp_sockets(process: int | str, root: str = "/proc") -> Iterator[TcpSocket]:
    """The same of UDP, whose tables have the same columns; one that is not connected has port 0 far away."""
    yield from _read_sockets(process, ("udp", "udp6"), root)


def _read_sockets(process: int | str, names: Sequence[str], root: str) -> Iterator[TcpSocket]:
    for name in names:
        with suppress(OSError):  # there may be no IPv6
            for line in read_text(f"{root}/{process}/net/{name}").splitlines()[1:]:
                fields = line.split()
                with suppress(ValueError, IndexError):
                    yield TcpSocket(fields[_LOCAL], fields[_REMOTE], fields[_STATE], int(fields[_INODE]))


def listening_ports(process: int | str, root: str = "/proc") -> dict[int, int]:
    """The ports that are listened on in the process's network namespace, by the socket's inode."""
    found = read_tcp_sockets(process, root)
    return {one.inode: one.local_port for one in found if one.state == LISTENING}


def read_network_namespace(process: int | str, root: str = "/proc") -> str:
    """The name of the network namespace that a process is in; empty where it cannot be read."""
    with suppress(OSError):
        return os.readlink(f"{root}/{process}/ns/net")
    return ""


def parse_address(words: str) -> Address:
    """Address and port from the kernel's hexadecimal, in this byte order; IPv4 within IPv6 as IPv4."""
    number, _, port = words.partition(":")
    data = b"".join(
        struct.pack("=I", int(number[place : place + 8], 16)) for place in range(0, len(number), 8)
    )
    address = socket.inet_ntop(socket.AF_INET if len(data) == 4 else socket.AF_INET6, data)
    return address.removeprefix("::ffff:"), int(port, 16)


def format_address(address: Address) -> str:
    """`10.0.0.2:443`, `[::1]:443`."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
