"""Clients that send without end, or take without end: each is cut off, and others are served meanwhile."""

import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpudiag_api.protocol import MAX_HEAD_BYTES
from tests.api.serving import Served

CLIENTS = 50
SECONDS = 2.0
GROWTH_BYTES = 64 * 1024 * 1024  # the shipped limit is 512 MiB, and one such client took 2.9 GB
HEAD = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"
BODY = b"POST /api/v1/session HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
BLOCK = 64 * 1024
# What comes first, and what follows again and again.
ENDLESS = {
    "header lines": (HEAD, b"x: y\r\n" * (BLOCK // 6)),
    "header names": (HEAD, b"x" * BLOCK),
    "a header value": (HEAD + b"X-Long: ", b"x" * BLOCK),
    "a folded header value": (HEAD + b"X-Long: x\r\n", b" x\r\n" * (BLOCK // 4)),
    "a path": (b"GET /", b"x" * BLOCK),
    "a method": (b"", b"G" * BLOCK),
    "empty lines": (b"", b"\r\n" * (BLOCK // 2)),
    "trailers": (BODY + b"0\r\n", b"x: y\r\n" * (BLOCK // 6)),
    "a chunk's extension": (BODY + b"1;x=", b"x" * BLOCK),
    "chunks of a byte": (BODY, b"1\r\n \r\n" * (BLOCK // 6)),
    "pipelined requests": (b"", (HEAD + b"\r\n") * (BLOCK // 43)),
    "a body that nobody asked for": (HEAD + b"Content-Length: 99999999999\r\n\r\n", b"x" * BLOCK),
}


def address(service: Served) -> tuple[str, int]:
    host, _, port = service.url.removeprefix("http://").partition(":")
    return host, int(port)


def resident_bytes(pid: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def send_without_end(place: tuple[str, int], first: bytes, block: bytes, until: float) -> int:
    """How many bytes the service took before it closed; a client that is cut off comes again."""
    most = 0
    while time.monotonic() < until:
        taken = 0
        with contextlib.suppress(OSError), socket.create_connection(place, timeout=1.0) as client:
            client.sendall(first)
            while time.monotonic() < until:
                client.sendall(block)
                taken += len(block)
                most = max(most, taken)
    return most


@contextlib.contextmanager
def attacked(service: Served, first: bytes, block: bytes, clients: int = CLIENTS) -> Iterator[None]:
    until = time.monotonic() + SECONDS
    arguments = (address(service), first, block, until)
    threads = [threading.Thread(target=send_without_end, args=arguments, daemon=True) for _ in range(clients)]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join(SECONDS + 10.0)
        assert not thread.is_alive()


@pytest.mark.sliced
@pytest.mark.parametrize("what", ENDLESS)
def test_what_is_sent_without_end_takes_no_memory_and_nobody_else_waits(served, what):
    before, most = resident_bytes(served.process.pid), 0
    answered = 0
    with attacked(served, *ENDLESS[what]):
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            assert served.get("/healthz").status_code == 200
            answered += 1
            most = max(most, resident_bytes(served.process.pid))
    assert answered > 1
    assert most - before < GROWTH_BYTES
    assert served.live()["devices"]


def answer_to(service: Served, *parts: bytes) -> bytes:
    """What the service says to that until it closes; this raises if the connection is reset."""
    answer = b""
    with socket.create_connection(address(service), timeout=60.0) as client:
        for part in parts:
            client.sendall(part)
            time.sleep(0.2)  # so that the parts arrive as such
        while chunk := client.recv(4096):
            answer += chunk
    return answer


def test_a_head_that_is_too_long_is_told_so(served):
    # The last byte read is the one too many.
    told = answer_to(served, HEAD, b"X-Long: " + b"x" * MAX_HEAD_BYTES)
    assert told.startswith(b"HTTP/1.1 431")
    assert b"the head of the request is too long" in told


def test_a_head_below_the_limit_of_the_wire_is_refused_in_words(served):
    head = HEAD + b"Connection: close\r\nX-Long: " + b"x" * (MAX_HEAD_BYTES - 4096) + b"\r\n\r\n"
    told = answer_to(served, head)
    assert told.startswith(b"HTTP/1.1 431")
    assert json.loads(told.partition(b"\r\n\r\n")[2])["code"] == "request.headers"


@pytest.mark.parametrize(
    ("status", "first", "block"),
    [(431, *ENDLESS["a header value"]), (431, *ENDLESS["trailers"]), (429, *ENDLESS["pipelined requests"])],
)
def test_a_client_that_is_still_sending_reads_why_it_is_refused(served, status, first, block):
    """Closed at once, the kernel would reset the connection, and the answer would be lost."""
    told = answer_to(served, first + block * 2, block, block)
    last = told.split(b"HTTP/1.1 ")[-1]
    assert last.startswith(b"%d " % status)
    assert last.endswith(b".\r\n")


def test_an_answer_that_ends_the_connection_before_the_body_has_come_is_read(served):
    head = (
        b"POST /api/v1/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: 90000\r\n\r\n"
    )
    told = answer_to(served, head, b"x" * 45000, b"x" * 45000)
    assert told.startswith(b"HTTP/1.1 401")
    assert json.loads(told.partition(b"\r\n\r\n")[2])["code"] == "access.token"


def test_a_connection_that_is_kept_may_ask_for_hours(served):
    """Bytes are counted for each request, not for the connection."""
    for _ in range(400):  # 3.2 MB, on the one connection that the client keeps
        assert served.get("/healthz", headers={"X-Long": "x" * 8000}).status_code == 200


def test_clients_that_read_nothing_and_clients_that_say_nothing_cost_nobody_else(served):
    before = resident_bytes(served.process.pid)
    with contextlib.ExitStack() as held:
        for number in range(CLIENTS * 4):
            client = held.enter_context(socket.create_connection(address(served), timeout=15.0))
            if number % 2:
                client.sendall(b"GET /api/v1/stream HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            assert served.get("/healthz").status_code == 200
        assert resident_bytes(served.process.pid) - before < GROWTH_BYTES
    assert served.live()["devices"]
