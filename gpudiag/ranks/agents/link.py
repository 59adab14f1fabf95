"""Links between agents: typed messages over a socket, the handshake with new agents, the wait for both."""

import contextlib
import json
import select
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from gpudiag.ranks.agents.messages import (
    Hello,
    MachineCaller,
    Message,
    RunKey,
    Stray,
    decode_message,
    encode_message,
)

# --- waiting for many descriptors


def wait_readable(descriptors: Iterable[int], seconds: float) -> None:
    """Return once one of them can be read, or its other end is gone; at the latest after `seconds`."""
    _wait(descriptors, select.POLLIN, seconds)


def wait_writable(descriptor: int, seconds: float) -> None:
    """Return once it can be written; at the latest after `seconds`."""
    _wait((descriptor,), select.POLLOUT, seconds)


def _wait(descriptors: Iterable[int], event: int, seconds: float) -> None:
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, event)
    poll.poll(max(0.0, seconds) * 1000)


# --- lines

_M = TypeVar("_M", bound=Message)

# Agents poll ten times a second: one that did not for this long was not running, and could not receive.
_OWN_PAUSE_SECONDS = 0.5
_ONE_LOOK_SECONDS = 0.1
_MESSAGE_BYTES = 64 << 20  # no message of ours comes near it
# A peer that has not read for this long is not waited for again: its messages are buffered. Whether it
# is hung is judged by its own silence.
_SEND_SECONDS = 1.0


def line_of(message: Message) -> bytes:
    """The message as it goes over a link; made once where many get the same."""
    return json.dumps(encode_message(message)).encode() + b"\n"


# A network that loses large packets still carries those of 576 bytes, which every IPv4 host takes (RFC 791):
# so agents can still agree on what they report.
_SMALL_SEGMENT_BYTES = 500
# The kernel hands several segments to an interface as one; where a virtual one drops that by its size, each
# of them must be sent by itself. More than this is sent as it comes: then there are too many ranks for that.
_APART_BYTES = 16_384


def connect_small(address: tuple[str, int], seconds: float) -> socket.socket:
    """A connection to that address on which both ends send small segments only.

    Raises:
        OSError: nobody was reached there; a name with several addresses gets that many `seconds` for each.
    """
    error: OSError = TimeoutError("no address")
    for family, kind, protocol, _, place in socket.getaddrinfo(*address, type=socket.SOCK_STREAM):
        connection = socket.socket(family, kind, protocol)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, _SMALL_SEGMENT_BYTES)
            connection.settimeout(seconds)
            connection.connect(place)
        except OSError as caught:
            connection.close()
            error = caught
        else:
            return connection
    raise error


class LinkLostError(Exception):
    """The other end is gone, or no longer reads."""


class Link:
    """One connection to another agent, carrying one message per line."""

    def __init__(self, connection: socket.socket) -> None:
        """Use `connection`, which this object closes."""
        self._connection = connection
        self._by_network = connection.family != socket.AF_UNIX
        if self._by_network:
            with contextlib.suppress(OSError):  # it is gone already
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = b""
        self._waiting: list[Message] = []  # received, and not yet returned
        self._unsendable = False
        self._unsent = b""
        self._stuck = False  # the other end does not read
        self._looked_at = time.monotonic()
        self.silent_seconds = 0.0  # for how long `receive` has returned nothing

    def fileno(self) -> int:
        """The descriptor to wait for."""
        return self._connection.fileno()

    @property
    def peer_address(self) -> str | None:
        """The IP address of the other end; None for a unix socket."""
        if self._connection.family == socket.AF_UNIX:
            return None
        address: str = self._connection.getpeername()[0]
        return address

    @property
    def own_address(self) -> str | None:
        """The IP address of this end; None for a unix socket."""
        if self._connection.family == socket.AF_UNIX:
            return None
        address: str = self._connection.getsockname()[0]
        return address

    @property
    def segment_bytes(self) -> int:
        """The bytes that TCP puts into one packet to the other end."""
        return self._connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)

    def send(self, message: Message) -> None:
        """Send one message; if the other end is gone it is dropped, and `receive` raises LinkLostError.

        `receive` first returns the other end's last messages, which may explain why it ended.
        """
        self.send_line(line_of(message), wait=True)

    def send_whole(self, message: Message) -> None:
        """Send one message in as few packets as it takes, and wait up to a second for that."""
        self._unsent += line_of(message)
        self._flush(_SEND_SECONDS, apart=False)

    def send_line(self, line: bytes, *, wait: bool = False) -> None:
        """Send what `line_of` made of a message.

        With `wait`, wait up to a second for an end that does not read.
        """
        if self._unsendable:
            return
        self._unsent += line
        self._flush(_SEND_SECONDS if wait and not self._stuck else 0.0)

    def receive(self) -> list[Message]:
        """The messages that have come since the last call, without waiting.

        Raises:
            LinkLostError: the other end is gone, and everything that it sent has been returned.
        """
        self._flush(0.0)
        self._connection.setblocking(False)
        lost = self._unsendable
        try:
            while chunk := self._connection.recv(1 << 16):
                self._received += chunk
            lost = True
        except BlockingIOError:
            pass
        except OSError:
            lost = True
        *lines, self._received = self._received.split(b"\n")
        self._count_silence(bool(lines))
        if (lost and not lines) or len(self._received) > _MESSAGE_BYTES:
            raise LinkLostError
        try:
            messages = [decode_message(json.loads(line)) for line in lines]
        except (ValueError, RecursionError) as error:  # the peer is not an agent of gpudiag
            raise LinkLostError from error
        waiting, self._waiting = self._waiting, []
        return waiting + messages

    def await_message(self, kind: type[_M], seconds: float) -> _M | None:
        """The next message if it is of type `kind` and comes within `seconds`; else None.

        Messages after it are kept for `receive`.
        """
        first = self.await_next(seconds)
        return first if isinstance(first, kind) else None

    def await_next(self, seconds: float) -> Message | None:
        """The next message of any type; None if none comes within `seconds`, or the other end is gone."""
        deadline = time.monotonic() + seconds
        while (remaining := deadline - time.monotonic()) > 0:
            wait_readable((self._connection.fileno(),), remaining)
            try:
                messages = self.receive()
            except LinkLostError:
                return None
            if messages:
                first, *self._waiting = messages
                return first
        return None

    def close(self) -> None:
        """Close the connection; a second call does nothing."""
        self._connection.close()

    def _flush(self, seconds: float, *, apart: bool = True) -> None:
        """Send what is buffered, `apart` in small packets; wait `seconds` at most for the other end."""
        deadline = time.monotonic() + seconds
        self._connection.setblocking(False)
        while self._unsent and not self._unsendable:
            try:
                small = apart and self._by_network and len(self._unsent) <= _APART_BYTES
                piece = self._unsent[:_SMALL_SEGMENT_BYTES] if small else self._unsent
                self._unsent = self._unsent[self._connection.send(piece) :]
            except BlockingIOError:
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    self._stuck = True
                    self._unsendable = len(self._unsent) > _MESSAGE_BYTES
                    return
                wait_writable(self._connection.fileno(), remaining)
            except OSError:
                self._unsendable = True
        self._stuck = False

    def _count_silence(self, received: bool) -> None:
        """Add the time since the last call, but only one tick if this process was itself paused meanwhile."""
        now = time.monotonic()
        gap, self._looked_at = now - self._looked_at, now
        listened = gap if gap <= _OWN_PAUSE_SECONDS else _ONE_LOOK_SECONDS
        self.silent_seconds = 0.0 if received else self.silent_seconds + listened


@dataclass(frozen=True, slots=True)
class Caller:
    """A process that has identified itself, its link, and the messages it sent after that."""

    link: Link
    hello: Hello | MachineCaller | Stray
    messages: list[Message]


class Handshake:
    """Accepts connections from processes of one run; the caller of `poll` owns the links that it returns."""

    def __init__(self, listeners: list[socket.socket], key: str) -> None:
        """Wait on `listeners`, which stay the caller's, for agents that know the run's `key`."""
        self._listeners = listeners
        self._key = key
        self._unknown: list[Link] = []  # connected, but not yet identified

    def filenos(self) -> list[int]:
        """The descriptors to wait for."""
        listening = [listener.fileno() for listener in self._listeners]
        return listening + [link.fileno() for link in self._unknown]

    def poll(self) -> list[Caller]:
        """The processes that have identified themselves since the last call, without waiting."""
        self._accept()
        return [caller for link in tuple(self._unknown) if (caller := self._greet(link)) is not None]

    def close(self) -> None:
        """Close the links of those that have not identified themselves."""
        for link in self._unknown:
            link.close()
        self._unknown.clear()

    def _accept(self) -> None:
        for listener in self._listeners:
            while (connection := _accept_one(listener)) is not None:
                self._unknown.append(Link(connection))

    def _greet(self, link: Link) -> Caller | None:
        try:
            messages = link.receive()
        except LinkLostError:
            self._unknown.remove(link)
            link.close()
            return None
        for place, message in enumerate(messages):
            if message == RunKey(self._key):
                link.send(message)
            elif isinstance(message, Hello | MachineCaller | Stray):
                self._unknown.remove(link)
                return Caller(link, message, messages[place + 1 :])
        return None


def _accept_one(listener: socket.socket) -> socket.socket | None:
    """The next connection; None if none is pending."""
    try:
        return listener.accept()[0]
    except OSError:
        return None
