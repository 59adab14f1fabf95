"""What BoundedProtocol takes from inside uvicorn's parser class, which uvicorn promises nobody.

pyproject.toml allows the versions that were tried. Before a newer one is let in, these must pass with it, and
tests/api too.
"""

import asyncio
import inspect
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from gpudiag_api.protocol import BoundedProtocol

ROOT = Path(__file__).parents[2]
# What is overridden, and called as `super()`, with the names of its parameters.
OVERRIDDEN = {
    "connection_made": ["transport"],
    "connection_lost": ["exc"],
    "data_received": ["data"],
    "on_message_begin": [],
    "on_headers_complete": [],
    "on_body": ["body"],
    "on_message_complete": [],
    "_start_asgi_task": ["cycle", "app"],
    "on_response_complete": [],
    "timeout_keep_alive_handler": [],
    "pause_writing": [],
    "resume_writing": [],
}
CALLED = {"_unset_keepalive_if_required": []}


class Transport(asyncio.Transport):
    """A connection that keeps what is written to it."""

    def __init__(self) -> None:
        super().__init__({"sockname": ("127.0.0.1", 80), "peername": ("127.0.0.1", 4711)})
        self.written = b""
        self.is_closed = False

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


async def wait_for_ever(scope: Any, receive: Any, send: Any) -> None:
    await asyncio.Event().wait()


def connect() -> tuple[BoundedProtocol, Transport]:
    config = uvicorn.Config(wait_for_ever, http=BoundedProtocol, lifespan="off", log_config=None)
    config.load()
    protocol = BoundedProtocol(config=config, server_state=ServerState(), app_state={})
    transport = Transport()
    protocol.connection_made(transport)
    return protocol, transport


@pytest.mark.parametrize(("name", "parameters"), [*OVERRIDDEN.items(), *CALLED.items()])
def test_uvicorn_has_the_method_with_these_parameters(name: str, parameters: list[str]) -> None:
    assert [*inspect.signature(getattr(HttpToolsProtocol, name)).parameters] == ["self", *parameters]


def test_every_method_of_uvicorn_that_is_overridden_is_in_the_list() -> None:
    own = {name for name, value in vars(BoundedProtocol).items() if inspect.isfunction(value)}
    assert own & {*dir(HttpToolsProtocol)} == OVERRIDDEN.keys()


def test_a_request_behind_another_waits_in_the_pipeline_with_what_is_counted_and_dismissed() -> None:
    async def talk() -> None:
        protocol, transport = connect()
        head = b"HTTP/1.1\r\nHost: here\r\nContent-Length: 3\r\n\r\n"
        protocol.data_received(b"POST /first?a=b " + head + b"abc")
        protocol.data_received(b"POST /second?c=d " + head + b"def")
        assert isinstance(protocol.flow, FlowControl)
        assert protocol.transport is transport
        first = protocol._running
        [(waiting, _app)] = protocol.pipeline
        assert first is not None
        for cycle, path in ((first, "/first"), (waiting, "/second")):
            assert cycle.scope["raw_path"] == path.encode()
            assert (b"host", b"here") in cycle.scope["headers"]
            assert len(cycle.scope["query_string"]) == len(b"a=b")
            assert len(cycle.body) == len(b"abc")
            assert (cycle.response_started, cycle.response_complete, cycle.disconnected) == (
                False,
                False,
                False,
            )
            assert cycle.transport is protocol._answered
        protocol.connection_lost(None)
        for cycle in (first, waiting):
            assert cycle.disconnected
            assert cycle.message_event.is_set()

    with ThreadPoolExecutor(
        1
    ) as thread:  # a browser, if this process has tried one, runs a loop in the main thread
        thread.submit(asyncio.run, talk()).result()


def test_only_versions_that_were_tried_are_installed() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    tried = re.search(r'"uvicorn>=([\d.]+),<([\d.]+)"', text)
    assert tried is not None
    lowest, here, beyond = (
        [int(number) for number in re.findall(r"\d+", version)[:2]]
        for version in (tried[1], uvicorn.__version__, tried[2])
    )
    assert lowest <= here < beyond
