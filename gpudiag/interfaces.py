"""The network interfaces of this process's network namespace with their addresses, in the order of getifaddrs(3)."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from socket import AF_INET6, AF_NETLINK, SOCK_RAW, if_indextoname, inet_ntop, socket

# linux/netlink.h, linux/rtnetlink.h, linux/if_addr.h
_NETLINK_ROUTE = 0
_REQUEST_DUMP = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_HEADER = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence, port
_ADDRESS_HEADER = struct.Struct("=BBBBI")  # ifaddrmsg: family, prefix length, flags, scope, interface index
_ATTRIBUTE = struct.Struct("=HH")  # rtattr: length, type
_RECEIVE_BYTES = 1 << 16
_RECEIVE_SECONDS = 2.0

_ERROR, _DONE, _NEW_ADDRESS, _ASK_ADDRESSES = 2, 3, 20, 22
_ADDRESS, _LOCAL = 1, 2  # IFA_ADDRESS is the peer's on a point-to-point link; IFA_LOCAL is ours


@dataclass(frozen=True, slots=True)
class InterfaceAddress:
    """One address of an interface, as text, and the length of its network's prefix in bits."""

    index: int
    interface: str
    address: str
    prefix: int


def list_addresses() -> list[InterfaceAddress]:
    """All addresses of this machine: those of IPv4 first, each family in the order of the interfaces.

    Raises:
        OSError: the kernel does not answer such questions here.
    """
    with socket(AF_NETLINK, SOCK_RAW, _NETLINK_ROUTE) as netlink:
        netlink.settimeout(_RECEIVE_SECONDS)
        size = _HEADER.size + _ADDRESS_HEADER.size
        netlink.send(
            _HEADER.pack(size, _ASK_ADDRESSES, _REQUEST_DUMP, 1, 0) + _ADDRESS_HEADER.pack(0, 0, 0, 0, 0)
        )
        found = [_parse_address(body) for body in _messages(netlink)]
    return sorted(found, key=lambda one: ":" in one.address)


def _messages(netlink: socket) -> Iterator[bytes]:
    """The body of each RTM_NEWADDR of a dump."""
    while True:
        data = netlink.recv(_RECEIVE_BYTES)
        while data:
            length, kind, *_ = _HEADER.unpack_from(data)
            if kind == _DONE:
                return
            if kind == _ERROR:
                raise OSError("netlink refuses to list addresses")
            if kind == _NEW_ADDRESS:
                yield data[_HEADER.size : length]
            data = data[_aligned(length) :]


def _parse_address(body: bytes) -> InterfaceAddress:
    """The content of one RTM_NEWADDR."""
    family, prefix, _, _, index = _ADDRESS_HEADER.unpack_from(body)
    attributes: dict[int, bytes] = {}
    at = _ADDRESS_HEADER.size
    while at + _ATTRIBUTE.size <= len(body):
        length, kind = _ATTRIBUTE.unpack_from(body, at)
        attributes[kind] = body[at + _ATTRIBUTE.size : at + length]
        at += _aligned(length)
    text = inet_ntop(family, attributes.get(_LOCAL) or attributes[_ADDRESS])
    if family == AF_INET6 and text.startswith("fe80:"):
        text = f"{text}%{index}"  # an address of its link alone: other machines need to know which
    return InterfaceAddress(index, if_indextoname(index), text, prefix)


def _aligned(length: int) -> int:
    return (length + 3) & ~3
