"""Clients that mean harm, for `service_limits.py`; only against 127.0.0.1, for a bounded time.

    python benchmarks/hostile_load.py KIND PORT CLIENTS SECONDS

KIND: heads (a header without end), bodies (a body without end), pipelined (requests without end), half-open
(the beginning of a head, and no more), never-reading (asks for a day's history again and again and takes none
of it). A client that is cut off comes again. Prints one JSON object.
"""

import itertools
import json
import select
import socket
import sys
import time

_BLOCK = 64 * 1024
_HOST = "127.0.0.1"
_HEAD = b"GET /api/v1/devices HTTP/1.1\r\nHost: 127.0.0.1\r\n"
_CHUNKED = b"POST /api/v1/session HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
# What comes first, and what follows for as long as it is taken.
_KINDS = {
    "heads": (_HEAD + b"X-Long: ", b"x" * _BLOCK),
    "bodies": (_CHUNKED, b"10000\r\n" + b"x" * 0x10000 + b"\r\n"),
    "pipelined": (b"", (_HEAD + b"\r\n") * (_BLOCK // len(_HEAD))),
    "half-open": (_HEAD, b""),
    "never-reading": (b"", b""),
}
# Of all together: it is the service that is measured, not this process.
_MOST_BYTES_A_SECOND = 64 * 1024 * 1024

_NUMBERS = itertools.cycle(range(6000))  # each asks for another day: none is made for two


class Client:
    """One of them: its connection, and what it has not been able to send yet."""

    def __init__(self, kind: str, port: int) -> None:
        self._first, self._block = _KINDS[kind]
        if kind == "never-reading":
            paths = [f"/api/v1/history?from={time.time() - 80_000 - next(_NUMBERS):.0f}" for _ in range(8)]
            self._first = b"".join(
                _HEAD.replace(b"/api/v1/devices", path.encode()) + b"\r\n" for path in paths
            )
        self.socket = socket.socket()
        if kind == "never-reading":
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.setblocking(False)
        self.socket.connect_ex((_HOST, port))
        self._left = self._first

    def send(self) -> int:
        """How many bytes went out; raises OSError where it is cut off."""
        self._left = self._left or self._block
        if not self._left:
            return 0
        sent = self.socket.send(self._left)
        self._left = self._left[sent:]
        return sent


def attack(kind: str, port: int, clients: int, seconds: float) -> dict[str, object]:
    """How often they were cut off, and how much they could send."""
    poll = select.epoll()
    known: dict[int, Client] = {}

    def begin() -> None:
        client = Client(kind, port)
        known[client.socket.fileno()] = client
        poll.register(client.socket, select.EPOLLOUT | select.EPOLLIN | select.EPOLLRDHUP)

    for _ in range(clients):
        begin()
    began, sent, cut = time.monotonic(), 0, 0
    while time.monotonic() - began < seconds:
        for number, what in poll.poll(0.1):
            if sent > _MOST_BYTES_A_SECOND * (time.monotonic() - began):
                time.sleep(0.001)
                break
            client = known[number]
            try:
                if what & (select.EPOLLHUP | select.EPOLLERR | select.EPOLLRDHUP):
                    raise ConnectionResetError
                if what & select.EPOLLOUT:
                    sent += client.send()
                    if not client._left and not client._block:
                        poll.modify(number, select.EPOLLRDHUP)
                if what & select.EPOLLIN and kind != "never-reading":
                    client.socket.recv(_BLOCK)
            except BlockingIOError:
                continue
            except OSError:
                cut += 1
                poll.unregister(number)
                known.pop(number).socket.close()
                begin()
    return {"cut": cut, "sent_bytes": sent}


if __name__ == "__main__":
    kind, port, clients, seconds = sys.argv[1:]
    print(json.dumps(attack(kind, int(port), int(clients), float(seconds))))
