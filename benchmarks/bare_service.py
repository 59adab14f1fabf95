"""What the service is compared with: the same bytes from a bare uvicorn app, and from a bare socket.

    python benchmarks/bare_service.py app FILE HEADERS     # serves FILE at every path, with these headers
    python benchmarks/bare_service.py ticks FILE CLIENTS   # sends FILE to that many listeners, once a second

HEADERS is a JSON object.

Prints its port, listens on 127.0.0.1, and ends with its standard input.
"""

import json
import os
import re
import socket
import sys
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from gpudiag.compat import UTC


def serve_app(body: bytes, headers: dict[str, str]) -> None:
    """Answer every request with that, by uvicorn as the service sets it up."""
    import uvicorn

    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": encoded})
            await send({"type": "http.response.body", "body": body})

    listening = _listen()
    config = uvicorn.Config(
        app,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        http="httptools",
        loop="uvloop",
        timeout_keep_alive=60,
    )
    uvicorn.Server(config).run(sockets=[listening])


def send_ticks(frame: bytes, clients: int) -> None:
    """Send the frame, with the time of its sending in it, to all listeners, one after the other."""
    listening = _listen()
    streams = []
    for _ in range(clients):
        stream, _ = listening.accept()
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        streams.append(stream)
    try:
        while True:
            time.sleep(1.0)
            at = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
            event = re.sub(rb'"at": "[^"]*"', f'"at": "{at}"'.encode(), frame, count=1)
            for stream in streams:
                stream.sendall(event)
    except OSError:
        return  # the listeners have gone


def _listen() -> socket.socket:
    listening = socket.create_server(("127.0.0.1", 0), backlog=2048)
    print(listening.getsockname()[1], flush=True)
    threading.Thread(target=_end_with_input, daemon=True).start()
    return listening


def _end_with_input() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    kind, path, more = sys.argv[1:]
    data = Path(path).read_bytes()
    if kind == "app":
        serve_app(data, json.loads(more))
    else:
        send_ticks(data, int(more))
