"""The interfaces of this process's network namespace with their addresses, in getifaddrs(3)'s order."""

import struct
from socket import AF_INET6, if_indextoname, inet_ntop
from typing import NamedTuple

from gpudiag.linux.netlink import ask_all, parse_attributes

# linux/rtnetlink.h, linux/if_addr.h
_NETLINK_ROUTE = 0
_ADDRESS_HEADER = struct.Struct("=BBBBI")  # ifaddrmsg: family, prefix length, flags, scope, interface index
_ASK_ADDRESSES = 22  # RTM_GETADDR
_ADDRESS, _LOCAL = 1, 2  # IFA_ADDRESS is the peer's on a point-to-point link; IFA_LOCAL is ours


class InterfaceAddress(NamedTuple):
    """One address of an interface, as text, and the length of its network's prefix in bits."""

    interface_index: int
    interface: str
    address: str
    prefix: int


def list_addresses() -> list[InterfaceAddress]:
    """All addresses of this machine, IPv4 first, by interface. Raises OSError: the kernel gives no answer."""
    question = _ADDRESS_HEADER.pack(0, 0, 0, 0, 0)
    found = [_parse_address(body) for body in ask_all(_NETLINK_ROUTE, _ASK_ADDRESSES, question)]
    return sorted(found, key=lambda one: ":" in one.address)


def _parse_address(body: bytes) -> InterfaceAddress:
    """The content of one RTM_NEWADDR."""
    family, prefix, _, _, index = _ADDRESS_HEADER.unpack_from(body)
    attributes = parse_attributes(body[_ADDRESS_HEADER.size :])
    text = inet_ntop(family, attributes.get(_LOCAL) or attributes[_ADDRESS])
    if family == AF_INET6 and text.startswith("fe80:"):
        text = f"{text}%{index}"  # an address of its link alone: other machines need to know which
    return InterfaceAddress(index, if_indextoname(index), text, prefix)
