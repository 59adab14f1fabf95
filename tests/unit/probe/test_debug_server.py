"""Torch's debug server: how it is found, what its ranks answer, and what listens there and is none."""

import http.server
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from gpudiag.model.job_state import DebugAnswers
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.probe.job import debug_server
from gpudiag.probe.job.debug_server import find_debug_server, read_debug_server

RECORDS = Path(__file__).parent / "flight_records" / "skip"
SOON = 20.0
STACK = 'Thread 0x00007f (most recent call first):\n  File "/jobs/me/job.py", line 12 in load_batch\n'
WAITS = {"pytorch.wait_counter.TCPStore__wait": {"active_count": 1}, "other": {"active_count": 0}}


class Rank(http.server.BaseHTTPRequestHandler):
    """What every rank serves: torch's worker server takes POST alone, and knows no NCCL here."""

    number = 0

    def do_POST(self) -> None:
        page = self.path.removeprefix("/handler/").removesuffix("?")
        answers = {
            "fr_trace_json": (RECORDS / f"comm_lib_trace_rank_{self.number}").read_bytes(),
            "dump_traceback": STACK.encode(),
            "wait_counter_values": json.dumps(WAITS).encode(),
        }
        reply(self, answers.get(page))

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def reply(handler: http.server.BaseHTTPRequestHandler, body: bytes | None) -> None:
    handler.send_response(200 if body is not None else 404)
    handler.end_headers()
    handler.wfile.write(body or b"")


@contextmanager
def serving(handler: type[http.server.BaseHTTPRequestHandler]) -> Iterator[int]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join(SOON)


def front(
    page: bytes, title: bytes = b"Torch Distributed Debug Server"
) -> type[http.server.BaseHTTPRequestHandler]:
    class Front(Rank):
        def do_GET(self) -> None:
            reply(
                self, b"<h1>" + title + b"</h1><pre>" + page + b"</pre>" if self.path == "/tcpstore" else None
            )

    return Front


def keys(places: dict[int, int]) -> bytes:
    lines = [f"    debug_server/rank{rank}: b'http://127.0.0.1:{port}'" for rank, port in places.items()]
    return "\n".join([*lines, "    default_pg/0//cpu//0/0: b'\\x02\\x00http://x'"]).encode()


def test_each_rank_is_asked_for_itself_and_a_silent_one_costs_only_itself() -> None:
    released = Event()

    class Stuck(Rank):
        def do_POST(self) -> None:
            released.wait(SOON)

    class Second(Rank):
        number = 2

    with serving(Rank) as first, serving(Second) as second, serving(Stuck) as stuck:
        with serving(front(keys({0: first, 2: second, 1: stuck}))) as port:
            answers = read_debug_server(port, host="127.0.0.1", deadline_seconds=3.0)
        released.set()
    assert isinstance(answers, DebugAnswers)
    assert answers.silent == (1,)
    assert sorted(str(one.rank) for one in answers.records) == ["0", "2"]
    assert {rank: text for rank, text in answers.stacks} == {0: STACK, 2: STACK}
    assert dict(answers.waits)[0] == (("pytorch.wait_counter.TCPStore__wait", 1),)


@pytest.mark.parametrize(
    ("page", "title", "said"),
    [
        (b"", b"Grafana", "not torch's"),
        (b"nothing", b"Torch Distributed Debug Server", "does not list the ranks' addresses"),
    ],
)
def test_another_server_and_a_page_without_ranks_are_sentences(page: bytes, title: bytes, said: str) -> None:
    with serving(front(page, title)) as port:
        answers = read_debug_server(port, host="127.0.0.1", deadline_seconds=SOON)
    assert isinstance(answers, Missing)
    assert said in answers.detail


def test_an_address_that_is_none_is_not_asked() -> None:
    hostile = (
        b"debug_server/rank0: b'http://127.0.0.1:1/@evil'\ndebug_server/rank1: b'http://a b:80'\n"
        b"rank2: b'file:///x'"
    )
    with serving(front(hostile + b"debug_server/rank3: b'http://x:99999'")) as port:
        answers = read_debug_server(port, host="127.0.0.1", deadline_seconds=SOON)
    assert isinstance(answers, Missing)


def test_a_silent_socket_an_endless_page_and_nobody_are_left_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        answers = read_debug_server(port, host="127.0.0.1", deadline_seconds=0.3)
        assert isinstance(answers, Missing)
        assert answers.reason is MissingReason.TIMED_OUT
    answers = read_debug_server(port, host="127.0.0.1", deadline_seconds=SOON)
    assert isinstance(answers, Missing)
    monkeypatch.setattr(debug_server, "MAX_PAGE_BYTES", 1000)
    with serving(front(b"x" * 5000)) as port:
        answers = read_debug_server(port, host="127.0.0.1", deadline_seconds=SOON)
    assert isinstance(answers, Missing)
    assert "longer than" in answers.detail


def processes(root: Path, ports: dict[int, int], sockets: dict[int, list[int]]) -> None:
    """A /proc with listening sockets: `ports` by inode, `sockets` by pid."""
    lines = [
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode"
    ]
    lines += [
        f"   {inode}: 00000000:{port:04X} 00000000:0000 0A 00000000:00000000 00:00000000 00000000     "
        f"0        0 {inode} 1"
        for inode, port in ports.items()
    ]
    for pid, inodes in sockets.items():
        (root / "proc" / str(pid) / "net").mkdir(parents=True)
        (root / "proc" / str(pid) / "net" / "tcp").write_text("\n".join(lines))
        (root / "proc" / str(pid) / "fd").mkdir()
        for number, inode in enumerate(inodes):
            (root / "proc" / str(pid) / "fd" / str(number)).symlink_to(f"socket:[{inode}]")


@pytest.mark.parametrize(
    ("ports", "sockets", "found"),
    [
        ({1: 29500, 2: 25999}, {10: [1], 11: [1, 2]}, 25999),
        ({1: 29500, 2: 4000}, {10: [1], 11: [1, 2]}, 4000),  # the script chose another port
        ({1: 29500, 2: 4000, 3: 4001}, {10: [1], 11: [1, 2, 3]}, None),  # which of the two is not known
        ({1: 29500}, {10: [1], 11: [1]}, None),  # a fork shares what was open before
        ({}, {10: [], 11: []}, None),
    ],
)
def test_the_server_is_a_child_of_rank_0_that_listens(
    ports: dict[int, int], sockets: dict[int, list[int]], found: int | None, tmp_path: Path
) -> None:
    processes(tmp_path, ports, sockets)
    assert find_debug_server([10, 11], tmp_path) == found
    assert find_debug_server([12], tmp_path) is None
