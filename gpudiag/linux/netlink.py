"""The kernel's answer by netlink to a question for all there is of something (linux/netlink.h)."""

import struct
from collections.abc import Iterator
from socket import AF_NETLINK, SOCK_RAW, socket

_HEADER = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence, port
_ATTRIBUTE = struct.Struct("=HH")  # nlattr: length, type
_REQUEST_DUMP = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_ERROR, _DONE, _LEAST_KIND = 2, 3, 16  # below NLMSG_MIN_TYPE kinds are netlink's own
_RECEIVE_BYTES = 1 << 17
_RECEIVE_SECONDS = 2.0


def ask_all(protocol: int, kind: int, question: bytes) -> Iterator[bytes]:
    """The body of each message of the answer. Raises OSError: the kernel gives none, or not in time."""
    with socket(AF_NETLINK, SOCK_RAW, protocol) as netlink:
        netlink.settimeout(_RECEIVE_SECONDS)
        netlink.send(_HEADER.pack(_HEADER.size + len(question), kind, _REQUEST_DUMP, 1, 0) + question)
        while True:
            data = netlink.recv(_RECEIVE_BYTES)
            while len(data) >= _HEADER.size:
                length, found, *_ = _HEADER.unpack_from(data)
                if found == _DONE:
                    return
                if found == _ERROR or length < _HEADER.size:
                    raise OSError("netlink refuses to answer")
                if found >= _LEAST_KIND:
                    yield data[_HEADER.size : length]
                data = data[_aligned(length) :]


def parse_attributes(data: bytes) -> dict[int, bytes]:
    """The attributes at the end of a message, by their kind."""
    attributes: dict[int, bytes] = {}
    while len(data) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data)
        if length < _ATTRIBUTE.size:
            break
        attributes[kind] = data[_ATTRIBUTE.size : length]
        data = data[_aligned(length) :]
    return attributes


def _aligned(length: int) -> int:
    return (length + 3) & ~3
