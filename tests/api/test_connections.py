"""One connection by itself: what is kept of what a client sends, what it is told, and when it is closed."""

import asyncio
import contextlib
import gc
import json
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator

import pytest
import uvicorn
from uvicorn.server import ServerState

from gpudiag_api.protocol import (
    LINGER_BYTES,
    MAX_HEAD_BYTES,
    MAX_HEADERS,
    MAX_LINGERING_BEYOND,
    MAX_WAITING_BYTES,
    MAX_WAITING_REQUESTS,
    BoundedProtocol,
)
from tests.api.test_hostile_clients import BLOCK, BODY, ENDLESS, HEAD

GET = HEAD + b"\r\n"
POST = b"POST /asked HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n"
READ_BYTES = 256 * 1024  # what uvloop gives at once
# Of one connection, with Python's objects: 1,000 of them stay under the shipped 512 MiB.
KEPT_BYTES = 384 * 1024
SENT_BYTES = 8 * 1024 * 1024


class Wire(asyncio.Transport):
    """A transport that notes what was written; nobody takes it where `taken` is False."""

    def __init__(self, protocol: BoundedProtocol, *, taken: bool = True) -> None:
        super().__init__()
        self.written = b""
        self.unread = 0
        self.ended = self.closing = self.aborted = self.paused = False
        self._protocol, self._taken = protocol, taken

    def get_extra_info(self, name, default=None):
        return default

    def write(self, data):
        assert not self.ended, "written after the end"
        self.written += data
        self.unread += 0 if self._taken else len(data)

    def get_write_buffer_size(self):
        return self.unread

    def can_write_eof(self):
        return True

    def write_eof(self):
        self.ended = True

    def pause_reading(self):
        self.paused = True

    def resume_reading(self):
        self.paused = False

    def is_closing(self):
        return self.closing

    def close(self):
        if not self.closing:
            self.closing = True
            if self.unread == 0:
                self._protocol.connection_lost(None)

    def abort(self):
        self.aborted = True
        if not self.closing or self.unread:
            self.closing = True
            self._protocol.connection_lost(None)


class Application:
    """Answers what it is let answer, with the path; keeps count of what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.ended: list[str] = []
        self.may_answer = asyncio.Event()

    async def __call__(self, scope, receive, send) -> None:
        path = scope["path"]
        self.asked.append(path)
        if path == "/stream":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        message = await receive()
        while message.get("more_body"):
            message = await receive()
        if path == "/stream":
            while message["type"] != "http.disconnect":
                message = await receive()
        else:
            await self.may_answer.wait()
            headers = [(b"content-length", b"%d" % len(path))]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": path.encode()})
        self.ended.append(path)


class Timers:
    """Stands for the loop: what was to be called later, called when a test says so."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.later: list[tuple[asyncio.TimerHandle, Callable[..., None], tuple]] = []

    def call_later(self, seconds, callback, *arguments):
        handle = self._loop.call_later(3600.0, lambda: None)
        self.later.append((handle, callback, arguments))
        return handle

    def create_task(self, coroutine):
        return self._loop.create_task(coroutine)

    def pass_all(self) -> None:
        """Every time that is waited for now has come."""
        now, self.later = self.later, []
        for handle, callback, arguments in now:
            if not handle.cancelled():
                callback(*arguments)


class Connection:
    """One connection to an application, with nothing below it."""

    def __init__(
        self, *, taken: bool = True, limit: int | None = None, state: ServerState | None = None
    ) -> None:
        self.application = Application()
        config = uvicorn.Config(self.application, log_config=None, ws="none", limit_concurrency=limit)
        config.load()
        self.timers = Timers(asyncio.get_running_loop())
        self.protocol = BoundedProtocol(config, state or ServerState(), {}, self.timers)
        self.wire = Wire(self.protocol, taken=taken)
        self.protocol.connection_made(self.wire)

    async def send(self, data: bytes) -> None:
        """Send that as far as it is read, and let the application work.

        What is behind stays in the kernel.
        """
        for start in range(0, len(data), READ_BYTES):
            if self.wire.paused:
                await settled()
            if not self.wire.closing and not self.wire.paused:
                self.protocol.data_received(data[start : start + READ_BYTES])
        await settled()

    def answers(self) -> list[tuple[int, bytes]]:
        """Status and body of each answer that was written; every one has its length."""
        found, left = [], self.wire.written
        while left:
            head, _, left = left.partition(b"\r\n\r\n")
            size = int(head.lower().partition(b"content-length:")[2].split()[0])
            found.append((int(head.split()[1]), left[:size]))
            left = left[size:]
        return found


def on_a_loop(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(test())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@contextlib.contextmanager
def measured_kept() -> Iterator[Callable[[], int]]:
    """How much more memory Python has at its worst since now."""
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        yield lambda: tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("what", [*ENDLESS, "requests with bodies", "requests behind a stream"])
def test_a_connection_keeps_little_of_what_is_sent_without_end(what):
    first, block = {
        **ENDLESS,
        "requests with bodies": (GET, (POST % 60_000 + b"x" * 60_000) * 2),
        "requests behind a stream": (GET.replace(b"/healthz", b"/stream"), GET * (BLOCK // len(GET))),
    }[what]

    async def send_all() -> int:
        connection = Connection()
        data = (block * (READ_BYTES // len(block) + 1))[:READ_BYTES]
        with measured_kept() as kept:
            await connection.send(first)
            for _ in range(SENT_BYTES // READ_BYTES):
                await connection.send(data)
            return kept()

    # With uvicorn's own limits pipelined requests took 14.7 MB, trailers 17.4 MB.
    assert asyncio.run(send_all()) < KEPT_BYTES


@on_a_loop
async def test_no_more_requests_wait_than_may_and_those_are_answered_before_the_refusal():
    connection = Connection()
    paths = [b"/%d" % number for number in range(100)]
    await connection.send(b"".join(GET.replace(b"/healthz", path) for path in paths))
    assert len(connection.protocol.pipeline) == MAX_WAITING_REQUESTS
    assert connection.wire.written == b""  # or the first request would be told what is meant for the tenth
    connection.application.may_answer.set()
    await settled()
    answers = connection.answers()
    assert answers[:-1] == [(200, path) for path in paths[: MAX_WAITING_REQUESTS + 1]]
    assert answers[-1][0] == 429
    assert b"too many requests wait" in answers[-1][1]
    assert connection.application.asked == [path.decode() for path in paths[: MAX_WAITING_REQUESTS + 1]]
    assert connection.wire.ended
    assert not connection.wire.closing
    assert not connection.wire.paused


@on_a_loop
async def test_as_many_requests_as_may_wait_are_all_answered_again_and_again():
    connection = Connection()
    connection.application.may_answer.set()
    for _ in range(50):
        await connection.send(GET * (MAX_WAITING_REQUESTS + 1))
    assert [status for status, _ in connection.answers()] == [200] * 50 * (MAX_WAITING_REQUESTS + 1)
    assert not connection.wire.ended


@on_a_loop
async def test_the_bodies_of_requests_that_wait_are_counted_together():
    connection = Connection()
    body = MAX_WAITING_BYTES // 4 + 1000
    await connection.send(GET + (POST % body + b"x" * body) * MAX_WAITING_REQUESTS)
    assert len(connection.protocol.pipeline) == 3
    connection.application.may_answer.set()
    await settled()
    assert [status for status, _ in connection.answers()] == [200, 200, 200, 200, 429]


@on_a_loop
async def test_what_comes_after_a_refusal_goes_nowhere():
    connection = Connection()
    await connection.send(HEAD + b"x: y\r\n" * (MAX_HEADERS + 1))
    assert [status for status, _ in connection.answers()] == [431]
    kept = len(connection.protocol.headers)
    await connection.send(b"\r\n" + GET * 100 + b"x: y\r\n" * 100)
    assert connection.application.asked == []
    assert not connection.protocol.pipeline
    assert len(connection.protocol.headers) == kept
    assert [status for status, _ in connection.answers()] == [431]


@pytest.mark.parametrize(
    ("status", "sent"),
    [
        (431, HEAD + b"X-Long: " + b"x" * 40_000),
        (431, HEAD + b"x: y\r\n" * MAX_HEADERS + b"\r\n"),
        (413, POST % 99_999_999 + b"x" * 2_000_000),
        (413, BODY + b"1\r\n \r\n" * 200_000),
        (431, BODY + b"0\r\n" + b"x: y\r\n" * 200),
        (400, BODY + b"no number\r\n"),
        (400, b"\x16\x03\x01\x02\x00\x01"),  # TLS, where there is none
        (429, GET * 20),
    ],
)
def test_a_refused_client_is_told_why_once_and_has_time_to_read_it(status, sent):
    async def refuse() -> None:
        connection = Connection()
        await connection.send(sent)
        connection.application.may_answer.set()
        await settled()
        told = connection.answers()
        assert told[-1][0] == status
        assert told[-1][1].endswith(b".\r\n")
        assert [code for code, _ in told[:-1]] == [200] * len(told[:-1])
        assert connection.wire.ended
        assert not connection.wire.closing  # closed now, the kernel would reset it and the answer be lost
        connection.timers.pass_all()
        assert connection.wire.aborted

    asyncio.run(refuse())


@pytest.mark.parametrize("size", [1, 43, 1000, 4096, 30_000, MAX_HEAD_BYTES + 1])
def test_a_head_that_is_too_long_is_refused_however_its_bytes_arrive(size):
    """On a loaded machine what was sent in parts is read at once."""

    async def refuse() -> None:
        head = (HEAD + b"X-Long: " + b"x" * MAX_HEAD_BYTES)[: MAX_HEAD_BYTES + 1]
        connection = Connection()
        for start in range(0, len(head), size):
            connection.protocol.data_received(head[start : start + size])
        assert [status for status, _ in connection.answers()] == [431]

    asyncio.run(refuse())


@on_a_loop
async def test_a_refused_client_that_goes_on_sending_is_not_read_and_is_cut_off_in_time():
    connection = Connection()
    await connection.send(HEAD + b"X-Long: " + b"x" * 40_000)
    await connection.send(b"x" * (LINGER_BYTES - 100_000))
    assert not connection.wire.paused
    await connection.send(b"x" * 200_000)
    assert connection.wire.paused
    connection.timers.pass_all()
    assert connection.wire.aborted


@on_a_loop
async def test_an_answer_that_has_begun_is_not_followed_by_another():
    """A stream whose client sends a body without end: the stream ends, and no status is written into it."""
    connection = Connection()
    await connection.send(b"GET /stream HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\n")
    await connection.send(b"x" * 2_000_000)
    assert connection.wire.written.count(b"HTTP/1.1") == 1
    assert connection.wire.ended
    assert connection.application.ended == ["/stream"]


@on_a_loop
async def test_a_refusal_behind_a_stream_does_not_wait_for_ever():
    connection = Connection()
    await connection.send(GET.replace(b"/healthz", b"/stream") + GET * 20)
    assert not connection.wire.ended
    connection.timers.pass_all()
    await settled()
    assert connection.wire.aborted
    assert connection.application.ended == ["/stream"]


@on_a_loop
async def test_an_answer_before_the_body_has_come_is_read_although_the_connection_closes():
    connection = Connection()
    connection.application.may_answer.set()

    async def refuse(scope, receive, send):
        await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"no"})

    connection.protocol.app = refuse
    await connection.send((POST % 100).replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    assert connection.answers() == [(401, b"no")]
    assert connection.wire.ended
    assert not connection.wire.closing
    await connection.send(b"x" * 100)
    connection.timers.pass_all()
    assert connection.wire.aborted


@on_a_loop
async def test_everything_that_a_client_asked_ends_when_it_goes():
    """uvicorn tells the newest request alone: a stream with a request behind it would go on without a
    listener.
    """
    connection = Connection()
    await connection.send(GET.replace(b"/healthz", b"/stream") + GET)
    connection.protocol.connection_lost(None)
    await settled()
    assert connection.application.ended == ["/stream"]


@on_a_loop
async def test_a_client_that_takes_nothing_is_cut_off_and_one_that_takes_a_little_is_not():
    for takes in (0, 10):
        connection = Connection(taken=False)
        connection.wire.write(b"x" * 100_000)
        connection.protocol.pause_writing()
        for _ in range(5):
            connection.wire.unread -= takes
            connection.timers.pass_all()
        assert connection.wire.aborted is (takes == 0)


@on_a_loop
async def test_a_connection_that_closes_does_not_wait_for_ever_to_be_read():
    connection = Connection(taken=False)
    connection.application.may_answer.set()
    await connection.send(GET)
    connection.protocol.timeout_keep_alive_handler()
    assert connection.wire.closing
    assert not connection.wire.aborted
    connection.timers.pass_all()
    assert connection.wire.aborted


@on_a_loop
async def test_one_connection_too_many_is_told_so_and_holds_nobody_s_place():
    state = ServerState()
    first = Connection(limit=1, state=state)  # uvicorn counts the one that comes, too
    assert [status for status, _ in first.answers()] == [503]
    assert not state.connections
    more = [Connection(limit=1, state=state) for _ in range(MAX_LINGERING_BEYOND)]
    assert all(status == 503 for one in more for status, _ in one.answers())
    assert [one.wire.closing for one in more] == [False] * (MAX_LINGERING_BEYOND - 1) + [True]
    for one in (first, *more):
        one.timers.pass_all()
    assert all(one.wire.closing for one in (first, *more))
    assert not BoundedProtocol._beyond
    assert json.dumps([status for status, _ in more[-1].answers()]) == "[503]"
