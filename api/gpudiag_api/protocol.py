"""HTTP connections with limits on time and bytes: uvicorn itself waits without limit.

Its parser buffers a head until it is complete, joins a header that comes in pieces again with each of them,
and queues the requests that come before the last one is answered. So bytes, headers and requests are counted
as they arrive, before the parser sees more of them; and the client must read what is written.

A refused connection gets an answer: closed while bytes are still arriving, it would be reset by the kernel,
and the answer lost. So it is half closed, and incoming bytes are dropped for a while.
"""

import asyncio
import logging
from dataclasses import dataclass
from typing import Any, ClassVar

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gpudiag_api.gate import MAX_BODY_BYTES

REQUEST_SECONDS = 10.0  # from the first byte, or the connection, to the end of the headers
MAX_HEAD_BYTES = 32 * 1024  # on the wire; the gate answers what is over its own limits and below this
MAX_HEADERS = 100  # with the trailers; one of a few bytes takes 150 in memory
# On the wire, for one request: the largest body that the gate takes, sent in chunks of a byte each.
MAX_MESSAGE_BYTES = 1024 * 1024
# Queued on one connection behind the request that is being answered; browsers send one at a time.
MAX_WAITING_REQUESTS = 8
MAX_WAITING_BYTES = 64 * 1024
LINGER_SECONDS = 2.0  # for the client to read why it is refused
LINGER_BYTES = 1024 * 1024
UNREAD_SECONDS = 30.0  # within which a client must read some of what was written
MAX_LINGERING_BEYOND = 50  # refused connections beyond the limit: each holds a descriptor
_MAX_PIECE_BYTES = 4 * 1024  # a piece may hold hundreds of headers before they are counted
_log = logging.getLogger("gpudiag.access")


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Why a connection is closed, as an answer; without words if the request has been answered already."""

    status: str
    words: str = ""
    headers: tuple[str, ...] = ()

    def answer(self) -> bytes:
        """The bytes to write; none without words."""
        if not self.words:
            return b""
        body = f"{self.words}.\r\n"
        kind = (
            "connection: close",
            "content-type: text/plain; charset=utf-8",
            f"content-length: {len(body)}",
        )
        return "\r\n".join((f"HTTP/1.1 {self.status}", *self.headers, *kind, "", body)).encode()


_NOTHING = _Refusal("")
_FULL = _Refusal("503 Service Unavailable", "too many are connected", ("retry-after: 10",))
_MALFORMED = _Refusal("400 Bad Request", "this is not HTTP")
_LONG_HEAD = _Refusal("431 Request Header Fields Too Large", "the head of the request is too long")
_MANY_HEADERS = _Refusal("431 Request Header Fields Too Large", f"the request has over {MAX_HEADERS} headers")
_LONG_MESSAGE = _Refusal("413 Content Too Large", "the request is too long")
_CROWDED = _Refusal("429 Too Many Requests", "too many requests wait on this connection", ("retry-after: 1",))


class _RefusedError(Exception):
    """Raised inside the parser to stop it: a refused connection is not parsed any further."""


class BoundedProtocol(HttpToolsProtocol):
    """One connection, bounded in memory and in time whatever the client sends or reads."""

    _beyond: ClassVar[set["BoundedProtocol"]] = set()  # refused beyond the limit, and still open

    _head_timer: asyncio.TimerHandle | None = None
    _in_head = False
    _message_bytes = 0  # of the request that is arriving
    _piece_bytes = 0  # of the piece that the parser has now
    _arriving: RequestResponseCycle | None = None  # the request whose body is arriving
    _running: RequestResponseCycle | None = None  # the request that is, or was last, answered
    _refusal: _Refusal | None = None  # once set, incoming bytes are dropped
    _dropped_bytes: int | None = None  # since the refusal was written
    _end_timer: asyncio.TimerHandle | None = None
    _unread_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Start the timeout of the first request; refuse a connection beyond the limit.

        uvicorn's own limit refuses requests, so connections without a request would not be counted.
        """
        super().connection_made(transport)
        self._answered = _Answered(self)
        self.headers = []
        limit = self.limit_concurrency
        if limit is not None and len(self.connections) >= limit:
            self.connections.discard(self)  # so that uvicorn goes on answering the others
            if len(self._beyond) < MAX_LINGERING_BEYOND:
                self._beyond.add(self)
                self._refuse(_FULL)
            else:
                self._refusal = _FULL
                transport.write(_FULL.answer())
                transport.close()
            return
        self._begin_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers, and notify every queued request of the disconnect.

        Uvicorn notifies only the last.
        """
        self._stop_waiting()
        for timer in (self._end_timer, self._unread_timer):
            if timer is not None:
                timer.cancel()
        self._beyond.discard(self)
        waiting = [cycle for cycle, _ in self.pipeline]
        self.pipeline.clear()
        for cycle in (self._running, *waiting):
            if cycle is not None and not cycle.response_complete:
                _dismiss(cycle)
        super().connection_lost(exc)
        self.cycle = self._running = self._arriving = None  # type: ignore[assignment]  # breaks a cycle

    def data_received(self, data: bytes) -> None:
        """Parse data in pieces; unless a request is being answered, the next one has a timeout."""
        for start in range(0, len(data), _MAX_PIECE_BYTES):
            if self._refusal is not None or self.transport.is_closing():
                self._drop(len(data) - start)
                return
            self._add(data[start : start + _MAX_PIECE_BYTES])
        if self._refusal is None:
            if self._is_answering():
                self._stop_waiting()
            else:
                self._begin_waiting()

    def _add(self, piece: bytes) -> None:
        self._piece_bytes = len(piece)
        self._message_bytes += len(piece)
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            pass  # no other protocol is spoken here: the request has been handed on like any other
        except httptools.HttpParserError:
            self._refuse(_MALFORMED)  # no effect if our own refusal stopped the parser
        excess = self._excess()
        if excess is not None:
            self._refuse(excess)

    def _excess(self) -> _Refusal | None:
        """The refusal if the client has sent too much of something; else None."""
        if self._in_head and self._message_bytes > MAX_HEAD_BYTES:
            return _LONG_HEAD
        if len(self.headers) > MAX_HEADERS:
            return _MANY_HEADERS
        if self._message_bytes > MAX_MESSAGE_BYTES:
            return _LONG_MESSAGE
        if self.pipeline and sum(_bytes_of(cycle) for cycle, _ in self.pipeline) > MAX_WAITING_BYTES:
            return _CROWDED
        return None

    def on_message_begin(self) -> None:
        """Start counting the bytes of a request; refuse it if too many wait already."""
        if len(self.pipeline) >= MAX_WAITING_REQUESTS:
            self._refuse(_CROWDED)
            raise _RefusedError
        super().on_message_begin()
        # Where in the piece it begins is not known, so the whole piece counts.
        self._in_head, self._message_bytes = True, self._piece_bytes

    def on_headers_complete(self) -> None:
        """Hand the request on; count what follows as its body."""
        if len(self.headers) > MAX_HEADERS:
            self._refuse(_MANY_HEADERS)
            raise _RefusedError
        super().on_headers_complete()
        self._in_head = False
        self._arriving = self.cycle
        self.cycle.transport = self._answered

    def on_body(self, body: bytes) -> None:
        """Keep as much as the gate accepts, and a little more, by which it sees that it is too much."""
        if len(self.cycle.body) <= MAX_BODY_BYTES:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Reset the byte count for the next request."""
        self._message_bytes, self._arriving = 0, None
        super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """Start the next request; uvicorn's own timer closes a connection that is kept alive."""
        if self._dropped_bytes is not None:
            return
        was_last = not self.pipeline
        super().on_response_complete()
        self._stop_waiting()
        if self._refusal is not None and was_last and not self.transport.is_closing():
            self._send_refusal()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection."""
        self._close()

    def pause_writing(self) -> None:
        """Stop writing until the client has read what is buffered, for which it has a timeout."""
        super().pause_writing()
        self._watch_reading()

    def resume_writing(self) -> None:
        """Write again, and cancel that timeout."""
        super().resume_writing()
        if self._unread_timer is not None and not self.transport.is_closing():
            self._unread_timer.cancel()
            self._unread_timer = None

    def _is_answering(self) -> bool:
        running = self._running
        return running is not None and not running.response_complete and not running.disconnected

    def _begin_waiting(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(REQUEST_SECONDS, self._close)

    def _stop_waiting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse(self, refusal: _Refusal) -> None:
        """Drop all further input, and answer why once the earlier requests are answered."""
        if self._refusal is not None or self.transport.is_closing():
            return
        self._refusal = refusal
        self._stop_waiting()
        self._unset_keepalive_if_required()
        del self.headers[MAX_HEADERS:]  # in place: the request shares this list, its trailers included
        _log.info(
            "refused: %s", refusal.words, extra={"status": int(refusal.status[:3]), "client": self._client()}
        )
        at_fault = self._arriving
        if at_fault is not None and at_fault is not self._running:
            self.pipeline.popleft()  # the newest: it is refused, and those before it are answered
        elif at_fault is not None:
            if at_fault.response_started:
                self._refusal = _NOTHING  # an answer has already begun
            _dismiss(at_fault)
        if self._is_answering():
            self.flow.pause_reading()
            self._end_later(REQUEST_SECONDS)
        else:
            self._send_refusal()

    def _client(self) -> str:
        return "" if self.client is None else self.client[0]

    def _send_refusal(self) -> None:
        """Write why, and give the client time to read it: what it still sends is dropped."""
        assert self._refusal is not None  # noqa: S101 - the callers have set it
        self._dropped_bytes = 0
        self._unset_keepalive_if_required()
        self.transport.write(self._refusal.answer())
        if self.transport.can_write_eof():  # not under TLS; there the answer's Content-Length marks its end
            self.transport.write_eof()
        self.flow.resume_reading()
        self._end_later(LINGER_SECONDS)

    def _drop(self, size_bytes: int) -> None:
        if self._dropped_bytes is not None:
            self._dropped_bytes += size_bytes
            if self._dropped_bytes > LINGER_BYTES:
                self.flow.pause_reading()  # not closed early: the client would reconnect at once

    def _end_later(self, seconds: float) -> None:
        if self._end_timer is not None:
            self._end_timer.cancel()
        self._end_timer = self.loop.call_later(seconds, self.transport.abort)

    def close_after_answer(self) -> None:
        """Close as the answer's `Connection: close` announces.

        A client that is still sending its request must get the answer.
        """
        if self._refusal is None and self._arriving is not None and not self.transport.is_closing():
            self._refusal = _NOTHING
            self._send_refusal()
        else:
            self._close()

    def _close(self) -> None:
        """Close once what was written is sent; the client has a timeout to read it."""
        self._stop_waiting()
        if not self.transport.is_closing():
            self.transport.close()
            if self.transport.get_write_buffer_size():
                self._watch_reading()

    def _watch_reading(self, before: int | None = None) -> None:
        """Abort the connection if the client has read nothing since the last check; else check again."""
        unread = self.transport.get_write_buffer_size()
        if before is not None and unread >= before:
            self.transport.abort()
            return
        if self._unread_timer is not None:
            self._unread_timer.cancel()
        self._unread_timer = self.loop.call_later(UNREAD_SECONDS, self._watch_reading, unread)


class _Answered(asyncio.Transport):
    """The transport for one request's answer; if the answer ends the connection, the protocol closes it."""

    __slots__ = ("_protocol",)

    def __init__(self, protocol: BoundedProtocol) -> None:
        super().__init__()
        self._protocol = protocol

    def write(self, data: Any) -> None:
        self._protocol.transport.write(data)

    def is_closing(self) -> bool:
        return self._protocol.transport.is_closing()

    def close(self) -> None:
        self._protocol.close_after_answer()


def _dismiss(cycle: RequestResponseCycle) -> None:
    """Notify the application that the client of this request has disconnected."""
    cycle.disconnected, cycle.waiting_for_100_continue = True, False
    cycle.message_event.set()


def _bytes_of(cycle: RequestResponseCycle) -> int:
    """The bytes that a waiting request holds."""
    scope = cycle.scope
    head = sum(len(name) + len(value) for name, value in scope["headers"])
    return len(cycle.body) + len(scope["raw_path"]) + len(scope["query_string"]) + head
