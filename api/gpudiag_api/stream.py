"""Server-sent events: each listener gets what the hub published, in its own time."""

import asyncio
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gpudiag_api.service import Service

HEARTBEAT_SECONDS = 15.0
_HEARTBEAT = b": still here\n\n"
_RETRY = b"retry: 2000\n\n"
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # nginx would keep events back
]


def stream_events(service: Service, last_id: str | None) -> Response:
    """A response that goes on until the caller leaves or the service stops."""
    return _Stream(service, last_id)


class _Stream(Response):
    """One listener's response."""

    def __init__(self, service: Service, last_id: str | None) -> None:
        super().__init__()
        self._service = service
        self._last_id = last_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        hub = self._service.hub
        listener = hub.listen(self._last_id)
        left = asyncio.create_task(_wait_for_leaving(receive))
        left.add_done_callback(lambda _: listener.wake())
        try:
            await send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
            await send({"type": "http.response.body", "body": _RETRY, "more_body": True})
            while not left.done() and not hub.closed:
                frames = await listener.take(HEARTBEAT_SECONDS) or _HEARTBEAT
                await send({"type": "http.response.body", "body": frames, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            hub.leave(listener)
            left.cancel()


async def _wait_for_leaving(receive: Receive) -> None:
    message: Any = None
    while message is None or message["type"] != "http.disconnect":
        message = await receive()
