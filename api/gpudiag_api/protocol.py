"""HTTP connections that must say what they want in time: uvicorn itself waits for a request without limit."""

import asyncio
from typing import Any

try:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as BaseProtocol
except ImportError:  # the parser in C is not installed
    from uvicorn.protocols.http.h11_impl import H11Protocol as BaseProtocol  # type: ignore[assignment]

REQUEST_SECONDS = 10.0  # from the first byte, or the connection, to the end of the headers
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 10\r\nconnection: close\r\n"
    b"content-type: text/plain; charset=utf-8\r\ncontent-length: 25\r\n\r\ntoo many are connected.\r\n"
)


class TimedProtocol(BaseProtocol):
    """One connection; closed when a request's head does not come in time."""

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the first request; one connection too many is told so and closed.

        uvicorn's own limit refuses requests, so that connections that ask nothing would not be counted.
        """
        super().connection_made(transport)
        limit = self.limit_concurrency
        if limit is not None and len(self.connections) >= limit:
            self.connections.discard(self)  # so that uvicorn goes on answering the others
            transport.write(_FULL)
            transport.close()
            return
        self._begin_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing any more."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take data in; a head that is not whole by now may take its time, but not more."""
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._begin_waiting()
        else:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        """A connection that is kept alive is closed by uvicorn's own timer."""
        super().on_response_complete()
        self._stop_waiting()

    def _begin_waiting(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(REQUEST_SECONDS, self._close_slow)

    def _stop_waiting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _close_slow(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self.transport.close()
