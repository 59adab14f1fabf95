"""What the kernel counts of the TCP connections of this agent's ranks, by the address at the other end.

As `ss -ti`: struct inet_diag_msg and tcp_info (linux/inet_diag.h, linux/tcp.h), of sockets that ranks have
open.
"""

import contextlib
import ipaddress
import socket
import struct
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpudiag.linux.netlink import ask_all, parse_attributes
from gpudiag.linux.proc import socket_inodes
from gpudiag.linux.sockets import ESTABLISHED, read_tcp_sockets

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_ESTABLISHED = 1 << 1
_INET_DIAG_INFO = 2
_MESSAGE_BYTES = 72  # struct inet_diag_msg
_INODE_OFFSET = 68
_DESTINATION_OFFSET = 24
_COOKIE_OFFSET = 44
# In struct tcp_info; the kernel is older than Linux 4.6 where the second is not there, and than 4.19 without
# the third.
_TOTAL_RETRANS_OFFSET, _DATA_SEGMENTS_OUT_OFFSET, _DSACK_DUPS_OFFSET = 100, 156, 216
_SAMPLE_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class PeerSegments:
    """Data segments that this agent's ranks sent to one address, and how many again because they were lost.

    A starved sender sends again what arrived (tail loss probes, RFC 8985); what the receiver reports so (RFC
    2883) does not count.
    """

    address: str
    segments: int
    retransmitted: int


class TcpCounters:
    """The counters of ranks' connections, read from time to time: what a closed one had counted is kept."""

    def __init__(self) -> None:
        """Start without a connection."""
        self._seen: dict[bytes, PeerSegments] = {}
        self._sampled_at = 0.0

    def sample(self, pids: Iterable[int]) -> bool:
        """Whether the counters were read now: twice a second, of all connections of those processes."""
        now = time.monotonic()
        if now - self._sampled_at < _SAMPLE_SECONDS:
            return False
        self._sampled_at = now
        self.read(pids)
        return True

    def read(self, pids: Iterable[int]) -> None:
        """Read the counters of all connections of those processes."""
        inodes = {inode for pid in pids for inode in socket_inodes(pid)}
        if inodes:
            for family in (socket.AF_INET, socket.AF_INET6):
                with contextlib.suppress(OSError):  # a kernel without inet_diag, or a sandbox that forbids it
                    self._seen.update(_read_connections(family, inodes))

    def totals(self) -> tuple[PeerSegments, ...]:
        """The sums by address, over all connections that were ever seen; none to this machine itself."""
        sums: dict[str, tuple[int, int]] = {}
        for one in self._seen.values():
            segments, again = sums.get(one.address, (0, 0))
            sums[one.address] = (segments + one.segments, again + one.retransmitted)
        return tuple(PeerSegments(address, *counts) for address, counts in sorted(sums.items()))


def plain_address(text: str) -> str:
    """The address without its scope; one of IPv4 that is written as of IPv6, as of IPv4."""
    address = ipaddress.ip_address(text.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def is_connected_to(pid: int, port: int) -> bool | None:
    """Whether that process has an open connection to this port, of any host; None where we may not look."""
    inodes = socket_inodes(pid)
    if not inodes:
        return None
    return any(
        one.remote_port == port and one.state == ESTABLISHED and one.inode in inodes
        for one in read_tcp_sockets(pid)
    )


def _read_connections(family: int, inodes: set[int]) -> Iterator[tuple[bytes, PeerSegments]]:
    """Each established connection of those sockets, by the kernel's cookie. Raises OSError: no answer."""
    asked = struct.pack("=BBBBI48x", family, socket.IPPROTO_TCP, 1 << (_INET_DIAG_INFO - 1), 0, _ESTABLISHED)
    for message in ask_all(_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, asked):
        found = _parse_connection(family, message, inodes)
        if found is not None:
            yield found


def _parse_connection(family: int, message: bytes, inodes: set[int]) -> tuple[bytes, PeerSegments] | None:
    """One connection; None where it is not of those sockets, is within this machine, or has no counters."""
    (inode,) = struct.unpack_from("=I", message, _INODE_OFFSET)
    size = 4 if family == socket.AF_INET else 16
    raw = message[_DESTINATION_OFFSET : _DESTINATION_OFFSET + size]
    source = message[_DESTINATION_OFFSET - 16 : _DESTINATION_OFFSET - 16 + size]
    info = parse_attributes(message[_MESSAGE_BYTES:]).get(_INET_DIAG_INFO, b"")
    if inode not in inodes or raw == source or len(info) < _DATA_SEGMENTS_OUT_OFFSET + 4:
        return None
    (again,) = struct.unpack_from("=I", info, _TOTAL_RETRANS_OFFSET)
    (segments,) = struct.unpack_from("=I", info, _DATA_SEGMENTS_OUT_OFFSET)
    if len(info) >= _DSACK_DUPS_OFFSET + 4:
        (for_nothing,) = struct.unpack_from("=I", info, _DSACK_DUPS_OFFSET)
        again = max(0, again - for_nothing)
    address = plain_address(socket.inet_ntop(family, raw))
    return message[_COOKIE_OFFSET : _COOKIE_OFFSET + 8], PeerSegments(address, segments, again)
