"""Machines' services as a hub meets them, on real sockets: good ones, and those that hang, lie, are old, or
have a wrong clock.

One thread with one loop serves all of them, each on a port of its own; `python -m tests.fake_machines` is not
needed: a benchmark imports it into a process of its own.
"""

import asyncio
import copy
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from email.utils import format_datetime
from typing import Any

from gpudiag import __version__
from gpudiag.compat import UTC

GIB = 1 << 30
_CONNECTIONS: set[asyncio.Task[None]] = set()  # those that are served now
LIES = {
    "no JSON": b"<html>It works!</html>",
    "a list": b"[1, 2, 3]",
    "no schema": b'{"devices": []}',
    "another document": b'{"schema": "gpudiag.report/1"}',
    "a number in place of a text": b'{"schema": "gpudiag.poll/1", "last_id": 7, "events": []}',
    "nested without end": b"[" * 200_000,
    "not a number": b'{"schema": "gpudiag.poll/1", "last_id": "a-1", "events": [NaN]}',
}


def live_document(host: str, gpus: int = 8, **changes: Any) -> dict[str, Any]:
    """A `gpudiag.live/1` as a healthy machine's service gives it, as far as a hub reads it."""
    now = _text(datetime.now(UTC))
    devices = [
        (
            {"uuid": f"GPU-{host}-{index}", "bus_id": f"00000000:{0x10 + index:02x}:00.0"}
            | {"nvml_index": index, "responding": True, "health": "ok", "finding_codes": []}
            | {"name": "NVIDIA H100 80GB HBM3", "utilization_percent": 90 + index % 8}
            | {"memory_total_bytes": 80 * GIB, "memory_used_bytes": 60 * GIB}
            | {"temperature_celsius": 50 + index, "power_draw_watts": 600.5, "fan_speed_percent": None}
            | {"processes": [{"pid": 4000 + index, "user": "ann", "command": "python train.py"}]}
            | {"pods": [], "slurm_jobs": [{"slurm_job_id": 4711, "user": "ann"}]}
            | {"missing": {"fan_speed_percent": "not_supported"}}
        )
        for index in range(gpus)
    ]
    return (
        {"schema": "gpudiag.live/1", "sequence": 1, "at": now, "host": host, "simulated": None}
        | {"version": __version__, "driver_version": "580.105.08", "cuda_driver_version": "13.0"}
        | {"verdict": "pass", "headline": f"{gpus} healthy", "devices": devices}
        | {"findings_version": 1, "finding_count": 0, "findings": [], "active_runs": []}
    ) | changes


def finding_document(code: str, outcome: str, message: str, remedy: str) -> dict[str, Any]:
    """A finding as a machine's live document has it; one that fails blocks jobs."""
    words = {"code": code, "outcome": outcome, "message": message, "remedy": remedy}
    return words | {"blocks_jobs": outcome == "fail"}


FAILED = {
    "verdict": "fail",
    "headline": "7 healthy, 1 lost",
    "finding_count": 2,
    "findings": [
        finding_document(
            "gpu.lost", "fail", "GPU 5 has fallen off the bus", "Reset it: `nvidia-smi -r -i 5`"
        ),
        finding_document("gpu.hot", "warn", "GPU 2 is hot", "Look at the fans"),
    ],
}


def _text(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass
class FakeMachine:
    """One machine: what its service says, and how it misbehaves; a test changes it while it is asked."""

    host: str
    kind: str = "good"  # hang, drip, closed, redirect, huge, endless, gzip, lie:NAME, status:N, old, frozen
    gpus: int = 8
    token: str = ""
    clock_seconds: float = 0.0  # ahead
    has_date: bool = True
    changes: dict[str, Any] = field(default_factory=dict)
    entries: list[dict[str, Any]] = field(default_factory=list)  # of its timeline, for the next poll
    base: dict[str, Any] | None = None  # the live document of a real service, in place of a small one
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    port: int = 0

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self.port}"

    def live(self) -> dict[str, Any]:
        """Its newest tick."""
        at = datetime.now(UTC) + timedelta(seconds=self.clock_seconds)
        document = self._renamed(_text(at)) | copy.deepcopy(self.changes)
        if self.kind == "frozen":
            document["at"] = "2026-11-20T21:04:05.123Z"
        if self.kind == "old":
            document["version"] = "0.0.9"
            del document["finding_count"], document["simulated"]
            for row in document["devices"]:
                del row["pods"], row["slurm_jobs"], row["power_draw_watts"]
        return document

    def _renamed(self, at: str) -> dict[str, Any]:
        if self.base is None:
            return live_document(self.host, self.gpus, at=at)
        document = copy.deepcopy(self.base) | {"host": self.host, "at": at}
        for row in document["devices"]:
            row["uuid"] = f"{self.host}-{row['uuid']}"
        return document

    def document(self, path: str) -> dict[str, Any] | None:
        """What its API has at that path."""
        if path.startswith("/api/v1/poll") and self.kind != "old":
            entries, self.entries = self.entries, []
            events = [{"id": "a-1", "event": "event", "data": entry} for entry in entries]
            live = {"id": "a-2", "event": "live", "data": self.live()}
            return {"schema": "gpudiag.poll/1", "last_id": "a-2", "gap": False, "events": [*events, live]}
        if path == "/api/v1/devices":
            return self.live()
        if path == "/api/v1/snapshot":
            rows = [
                {"uuid": row["uuid"], "serial": f"165{index:04d}{self.port}"}
                for index, row in enumerate(self.live()["devices"])
            ]
            return {"schema": "gpudiag.snapshot/1", "devices": rows}
        return None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection's requests."""
        task = asyncio.current_task()
        assert task is not None
        _CONNECTIONS.add(task)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                path = head[0].split(" ")[1]
                headers = dict(line.lower().split(": ", 1) for line in head[1:] if ": " in line)
                self.requests.append((path, headers))
                if not await self._answer(path, headers, writer):
                    break
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the hub has left, or the test is over
        finally:
            _CONNECTIONS.discard(task)
            # A peer that has left takes nothing more, and close would wait for it.
            writer.close() if self.kind == "closed" else writer.transport.abort()

    async def _answer(self, path: str, headers: dict[str, str], writer: asyncio.StreamWriter) -> bool:
        """Whether the connection goes on."""
        if self.kind == "closed":
            return False
        if self.kind == "hang":
            await asyncio.sleep(600)
        if self.kind == "drip":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
            for _ in range(600):
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.5)
        if self.kind == "endless":
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            for _ in range(10_000):
                writer.write(b"10000\r\n" + b" " * 65536 + b"\r\n")
                await writer.drain()
            return False
        status, more, body = self._response(path, headers)
        date = datetime.now(UTC) + timedelta(seconds=self.clock_seconds)
        lines = [
            f"HTTP/1.1 {status} Words",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            *more,
        ]
        if self.has_date:
            lines.append(f"Date: {format_datetime(date, usegmt=True)}")
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        return True

    def _response(self, path: str, headers: dict[str, str]) -> tuple[int, list[str], bytes]:
        """Status, further headers and body."""
        kind, _, what = self.kind.partition(":")
        if kind == "status":
            return int(what), [], b"{}"
        if kind == "redirect":
            return 302, ["Location: http://127.0.0.1:1/elsewhere"], b""
        if kind == "gzip":
            return 200, ["Content-Encoding: gzip"], b"\x1f\x8b" + b"0" * 100
        if kind == "huge":
            return 200, [], b'{"schema": "gpudiag.poll/1", "x": "' + b"x" * (3 << 20) + b'"}'
        if kind == "lie":
            return 200, [], LIES[what]
        if self.token and headers.get("authorization") != f"bearer {self.token.lower()}":
            return 401, [], b"{}"
        document = self.document(path)
        return (404, [], b"{}") if document is None else (200, [], json.dumps(document).encode())


@contextmanager
def machines_on_sockets(machines: list[FakeMachine], tls: Any = None) -> Iterator[list[FakeMachine]]:
    """The machines, each listening; they end with the context."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start() -> list[asyncio.Server]:
        servers = []
        for machine in machines:
            server = await asyncio.start_server(machine.serve, "127.0.0.1", machine.port, ssl=tls)
            machine.port = server.sockets[0].getsockname()[1]
            servers.append(server)
        return servers

    async def stop() -> None:
        # A server that is closed while it accepts leaves the connection open (CPython, Server._attach): first
        # it only listens.
        for server in servers:
            for listening in server.sockets:
                loop.remove_reader(listening.fileno())
        # What was just accepted takes some turns to start, and then ends as the others do; sockets are closed
        # a turn later.
        quiet_turns = 0
        while quiet_turns < 10:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others & _CONNECTIONS:
                task.cancel()
            quiet_turns = 0 if others else quiet_turns + 1
            await asyncio.sleep(0.001)
        for server in servers:
            server.close()

    servers = asyncio.run_coroutine_threadsafe(start(), loop).result(20)
    try:
        yield machines
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result(20)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(20)
        loop.close()
