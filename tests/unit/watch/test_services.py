"""Machines by their services: one that hangs, lies or refuses costs its own row, and says so."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

from gpudiag.fleet.addresses import parse_addresses
from gpudiag.model.codec import dumps
from gpudiag.model.service import DeviceSeries, Series
from gpudiag.time_limit import within
from gpudiag.watch.services import ServicesFeed
from tests.unit.watch.frames import STORY, live_of
from tests.walking import walk


class Service(BaseHTTPRequestHandler):
    """Answers as a service does, or in the way that the test asks for."""

    answers: ClassVar[dict[str, tuple[int, bytes]]] = {}
    wanted_token = ""
    hangs = threading.Event()
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.asked.append(path)
        if path == "/hang/api/v1/devices":
            self.hangs.wait(60)
        status, body = self.answers.get(path, (404, b"{}"))
        if self.wanted_token and self.headers.get("Authorization") != f"Bearer {self.wanted_token}":
            status, body = 401, b"{}"
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words: object) -> None:
        """Keep quiet."""


@contextmanager
def service(answers: dict[str, tuple[int, bytes]], token: str = "") -> Iterator[tuple[int, list[str]]]:
    asked: ClassVar[list[str]] = []
    hangs = threading.Event()
    kind = type(
        "One", (Service,), {"answers": answers, "wanted_token": token, "asked": asked, "hangs": hangs}
    )
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server.server_address[1], asked
    finally:
        hangs.set()
        server.shutdown()
        server.server_close()


def gather(texts: list[str], is_enough, token: str | None = None):
    """The frames of these machines, by name, once they are enough."""
    feed = ServicesFeed(parse_addresses(texts), 0.05, token)

    async def watch() -> None:
        task = asyncio.create_task(feed.run(lambda: None))
        while not is_enough({frame.name: frame for frame in feed.frames}):
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(within(120, watch()))
    return {frame.name: frame for frame in feed.frames}


def documents() -> dict[str, tuple[int, bytes]]:
    live, findings = live_of(STORY)
    uuid = str(live.devices[0].id.uuid)
    series = Series(
        0.0,
        0.0,
        4.0,
        1.0,
        1.0,
        (0.0, 1.0),
        (DeviceSeries(uuid, 0, "x", {"utilization_percent": (7.0, None)}),),
    )
    return {
        "/api/v1/devices": (200, dumps(live).encode()),
        "/api/v1/findings": (200, dumps(findings).encode()),
        "/api/v1/history": (200, dumps(series).encode()),
    }


def test_a_machine_is_shown_as_its_service_gives_it_with_what_it_remembers():
    live, findings = live_of(STORY)
    with service(documents()) as (port, asked):
        name = f"127.0.0.1:{port}"
        frame = gather([name], lambda frames: frames[name].live is not None)[name]
    assert frame.live.devices == live.devices
    assert [one.code for one in frame.findings] == [one.code for one in findings.findings]
    assert frame.problem is None
    assert frame.is_here is False
    history = frame.history[str(live.devices[0].id.uuid)]["utilization_percent"]
    assert history[:2] == (7.0, None)
    assert history[2] == live.devices[0].utilization_percent
    assert asked.count("/api/v1/history") == 1
    assert "/api/v1/findings" not in asked  # the tick has all of them


def test_more_findings_than_a_tick_has_are_asked_for():
    answers = documents()
    live, findings = live_of(STORY)
    answers["/api/v1/devices"] = 200, dumps(replace(live, findings=(), finding_count=1)).encode()
    with service(answers) as (port, _):
        name = f"127.0.0.1:{port}"
        frame = gather([name], lambda frames: frames[name].live is not None)[name]
    assert [one.code for one in frame.findings] == [one.code for one in findings.findings]


def test_each_way_of_giving_nothing_has_its_words():
    live = documents()["/api/v1/devices"]
    ways = {
        "/none": ((404, b"{}"), "there is no gpudiag service"),
        "/starting": ((503, b"{}"), "it is starting"),
        "/odd": ((418, b"{}"), "HTTP 418"),
        "/html": ((200, b"<html>"), "no JSON"),
        "/list": ((200, b"[1]"), "no document of gpudiag"),
        "/other": ((200, json.dumps({"schema": "gpudiag.health/1"}).encode()), "its answer cannot be read"),
        "/newer": ((200, live[1].replace(b"gpudiag.live/1", b"gpudiag.live/2")), "does not know the schema"),
    }
    with service({f"{path}/api/v1/devices": answer for path, (answer, _) in ways.items()}) as (port, _):
        names = {path: f"http://127.0.0.1:{port}{path}" for path in ways}
        names["closed"] = "127.0.0.1:1"
        frames = gather(list(names.values()), lambda frames: all(frame.problem for frame in frames.values()))

    def has_words(path: str) -> None:
        assert ways[path][1] in frames[names[path]].problem

    walk(has_words, ways)
    assert "nothing listens on port 1" in frames[names["closed"]].problem


def test_a_machine_that_hangs_costs_its_own_row():
    with service(documents()) as (port, _):
        well, hung = f"127.0.0.1:{port}", f"http://127.0.0.1:{port}/hang"
        frames = gather([hung, well], lambda frames: frames[well].live is not None)
    assert frames[hung].live is None


def test_a_token_is_sent_and_a_missing_one_is_asked_for():
    with service(documents(), token="t" * 16) as (port, _):
        name = f"127.0.0.1:{port}"
        frames = gather([name], lambda frames: frames[name].problem is not None)
        assert "--token-file" in frames[name].problem
        frames = gather([name], lambda frames: frames[name].live is not None, token="t" * 16)
        assert frames[name].problem is None
