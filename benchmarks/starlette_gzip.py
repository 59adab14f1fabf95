"""What compression costs a caller: a document compressed once for all, against Starlette's GZipMiddleware.

    python benchmarks/starlette_gzip.py [--callers 32] [--rounds 5]

The devices of 8 simulated GPUs, and an hour and a day of all their readings, as the service writes them. Both ways are
called as ASGI applications in this process, in turns; what counts is processor time until the last byte of an answer, by
all threads. A document is new in each round, as it is at each tick, and every caller of the round asks for it.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import httpx
import starlette
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.service_limits import fill_day
from gpudiag_api.replies import JSON, encode_body, reply
from tests.api.serving import machine, serving

_HOUR, _DAY = 3600, 86_000
_OUR_LEVEL, _DEFAULT_LEVEL = 6, 9


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--callers", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print(
        f"Starlette {starlette.__version__}; ms of a processor an answer, {options.callers} callers a document"
    )
    for name, body in read_documents().items():
        print(
            f"{name}, {len(body):,} bytes: " + measure_ways(body, options.callers, options.rounds), flush=True
        )


def read_documents() -> dict[str, bytes]:
    """The bodies that a service of 8 GPUs with a day of readings gives."""
    with machine("h100x8+busy:0") as session, tempfile.TemporaryDirectory() as folder:
        state = Path(folder)
        with serving(session, state) as service:
            service.wait_for_data()
            uuids = [device["uuid"] for device in service.live()["devices"]]
        (readings,) = state.glob("service-simulated/*/readings")
        fill_day(readings, uuids)
        with serving(session, state) as service:
            service.wait_for_data()
            now = time.time()
            paths = {
                "devices": "devices",
                "an hour": f"history?from={now - _HOUR:.0f}",
                "a day": f"history?from={now - _DAY:.0f}",
            }
            return {name: _ask(f"{service.url}/api/v1/{path}") for name, path in paths.items()}


def _ask(url: str) -> bytes:
    return httpx.get(url, headers={"Accept-Encoding": "identity"}, timeout=60).raise_for_status().content


def measure_ways(body: bytes, callers: int, rounds: int) -> str:
    """The medians of each way, and how many times ours that is."""
    seconds: dict[str, list[float]] = {}
    sizes = {}
    for _ in range(rounds):
        for way, application in make_ways(body).items():
            spent, sizes[way] = asyncio.run(_answer_all(application, callers))
            seconds.setdefault(way, []).append(spent / callers)
    medians = {way: statistics.median(values) for way, values in seconds.items()}
    ours = medians["shared"]
    return "; ".join(
        f"{way} {1000 * median:.2f} ({median / ours:.0f}x, {sizes[way]:,} bytes)"
        for way, median in medians.items()
    )


def make_ways(body: bytes) -> dict[str, ASGIApp]:
    """Applications that answer with that document, which none has seen yet."""
    document = encode_body(body)

    async def shared(scope: Scope, receive: Receive, send: Send) -> None:
        await reply(Request(scope, receive), document)(scope, receive, send)

    async def plain(scope: Scope, receive: Receive, send: Send) -> None:
        await Response(body, media_type=JSON)(scope, receive, send)

    return {
        "shared": shared,
        "middleware": GZipMiddleware(plain, compresslevel=_OUR_LEVEL),
        "middleware as it comes": GZipMiddleware(plain, compresslevel=_DEFAULT_LEVEL),
    }


async def _answer_all(application: ASGIApp, callers: int) -> tuple[float, int]:
    """Seconds of a processor that all callers took together, and the bytes of one answer."""
    scope = {"type": "http", "method": "GET", "path": "/", "headers": [(b"accept-encoding", b"gzip")]}
    size = 0

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(message: MutableMapping[str, Any]) -> None:
        nonlocal size
        size += len(message.get("body", b""))

    began = time.process_time()
    for _ in range(callers):
        await application({**scope}, receive, send)
    return time.process_time() - began, size // callers


if __name__ == "__main__":
    main()
