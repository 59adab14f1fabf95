"""The load of `service_load.py`, in a process of its own: plain sockets in one loop, timed by the kernel.

    python benchmarks/socket_load.py stream HOST PORT CLIENTS SECONDS
    python benchmarks/socket_load.py requests HOST PORT RATE SECONDS [PATH]
    python benchmarks/socket_load.py closed HOST PORT CONNECTIONS SECONDS PATH[,PATH...] [PAUSE]

Prints one JSON object. On a machine with few processors the load is late itself, so what counts is when data
reached the socket (SO_TIMESTAMPNS), not when this process got round to reading it; how late the load was is
printed beside it.
"""

import json
import math
import select
import socket
import struct
import sys
import time
from collections import deque
from typing import Any

from gpudiag.compat import parse_iso_time

_SO_TIMESTAMPNS = 35  # asm-generic/socket.h; the control message has the same number
_READ_BYTES = 1 << 18
_SETTLE_SECONDS = 5.0  # streams are opened and have had their first tick
_CONNECTIONS = 64
_WARM_UP_SECONDS = 1.0
_LEFT_SECONDS = 2.0  # for answers after the last request


def connect(host: str, port: int) -> socket.socket:
    """A connection whose data the kernel stamps."""
    made = socket.create_connection((host, port), timeout=10)
    made.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.setblocking(False)
    return made


def receive(connection: socket.socket) -> tuple[bytes, float]:
    """What has come, and the Unix time at which the last of it reached the socket."""
    data, control, _, _ = connection.recvmsg(_READ_BYTES, 64)
    for _, kind, value in control:
        if kind == _SO_TIMESTAMPNS:
            seconds, nanoseconds = struct.unpack("qq", value[:16])
            return data, seconds + nanoseconds / 1e9
    if not data:
        raise SystemExit("the service has closed a connection")
    # The kernel has joined segments and lost the stamp: read now is no earlier than arrived.
    return (
        data,
        time.time(),
    )


def measure_stream(host: str, port: int, clients: int, seconds: float) -> dict[str, object]:
    """How late ticks reach that many listeners: from the time in the tick to its arrival at the socket."""
    poll = select.epoll()
    streams = [connect(host, port) for _ in range(clients)]
    counts = {stream.fileno(): 0 for stream in streams}
    by_number = {stream.fileno(): stream for stream in streams}
    for stream in streams:
        stream.sendall(f"GET /api/v1/stream HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
        poll.register(stream, select.EPOLLIN)
    delays: list[float] = []
    reading: list[float] = []
    began = time.monotonic()
    counting = False
    while (passed := time.monotonic() - began) < _SETTLE_SECONDS + seconds:
        if not counting and passed >= _SETTLE_SECONDS:
            counting = True
        for number, _ in poll.poll(0.2):
            data, arrived = receive(by_number[number])
            reading.append(time.time() - arrived)
            at = (
                data.find(b'"at": "', 0, 400)
                if b"event: live" in data[:200] or b"event: machines" in data[:200]
                else -1
            )
            if counting and at >= 0:
                counts[number] += 1
                delays.append(arrived - parse_time(data[at + 7 : at + 39].split(b'"', 1)[0]))
    return {
        "ticks": len(delays),
        "fewest": min(counts.values()),
        "most": max(counts.values()),
        "p50": share_of(delays, 0.5),
        "p99": share_of(delays, 0.99),
        "worst": max(delays),
        "read_late_p99": share_of(reading, 0.99),
    }


def measure_requests(
    host: str, port: int, rate: int, seconds: float, path: str = "/api/v1/devices"
) -> dict[str, object]:
    """Latency at a rate that does not wait for answers, from the request's sending to the answer's end.

    A request that finds no connection free waits, and its waiting counts: it is the service that is slow.
    """
    poll = select.epoll()
    free = deque(connect(host, port) for _ in range(_CONNECTIONS))
    by_number = {one.fileno(): one for one in free}
    for one in free:
        poll.register(one, select.EPOLLIN)
    request = f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode()
    sent_at: dict[int, float] = {}
    missing: dict[int, int] = {}  # bytes of the answer that have not come; absent: its head neither
    latencies: list[float] = []
    late: list[float] = []
    waiting: deque[float] = deque()
    began, due, statuses = time.time(), 0, 0
    end = _WARM_UP_SECONDS + seconds
    while (passed := time.time() - began) < end or (sent_at and passed < end + _LEFT_SECONDS):
        while due < min(passed, end) * rate:
            planned = began + due / rate
            waiting.append(time.time() if free else planned)
            if planned > began + _WARM_UP_SECONDS:
                late.append(time.time() - planned)
            due += 1
            while waiting and free:
                one = free.popleft()
                sent_at[one.fileno()] = waiting.popleft()
                one.sendall(request)
        for number, _ in poll.poll(0.0005):
            data, arrived = receive(by_number[number])
            left = missing.pop(number, None)
            if left is None:
                head, _, body = data.partition(b"\r\n\r\n")
                statuses += head.startswith(b"HTTP/1.1 200")
                left = length_in(head) - len(body)
            else:
                left -= len(data)
            if left > 0:
                missing[number] = left
                continue
            began_at = sent_at.pop(number)
            if began_at > began + _WARM_UP_SECONDS:
                latencies.append(arrived - began_at)
            free.append(by_number[number])
            if waiting:
                one = free.popleft()
                sent_at[one.fileno()] = waiting.popleft()
                one.sendall(request)
    return {
        "sent": due,
        "good": statuses,
        "counted": len(latencies),
        "p50": share_of(latencies, 0.5),
        "p99": share_of(latencies, 0.99),
        "worst": max(latencies, default=math.inf),
        "sent_late_p99": share_of(late, 0.99),
    }


def measure_closed(
    host: str, port: int, connections: int, seconds: float, paths: str, pause: str = "0"
) -> dict[str, object]:
    """Answers to that many connections, each of which asks again so many seconds after it has its answer."""
    poll = select.epoll()
    given = paths.split(",")
    asking: dict[int, tuple[socket.socket, bytes]] = {}
    missing: dict[int, int] = {}
    for number in range(connections):
        one = connect(host, port)
        path = given[number % len(given)]
        request = f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nAccept-Encoding: gzip\r\n\r\n".encode()
        asking[one.fileno()] = one, request
        poll.register(one, select.EPOLLIN)
    began = time.monotonic()
    answered = size_bytes = failed = 0
    resting: deque[tuple[float, socket.socket, bytes]] = deque()
    for one, request in asking.values():
        one.sendall(request)
    while time.monotonic() - began < seconds:
        while resting and resting[0][0] <= time.monotonic():
            _, one, request = resting.popleft()
            one.sendall(request)
        for number, _ in poll.poll(0.01):
            one, request = asking[number]
            data = one.recv(_READ_BYTES)
            if not data:
                raise SystemExit("the service closed a connection")
            size_bytes += len(data)
            left = missing.pop(number, None)
            if left is None:
                head, _, body = data.partition(b"\r\n\r\n")
                failed += not head.startswith(b"HTTP/1.1 200")
                left = length_in(head) - len(body)
            else:
                left -= len(data)
            if left > 0:
                missing[number] = left
                continue
            answered += 1
            if float(pause) > 0:
                resting.append((time.monotonic() + float(pause), one, request))
            else:
                one.sendall(request)
    lasted = time.monotonic() - began
    return {"answered": answered, "failed": failed, "seconds": lasted, "bytes": size_bytes}


def length_in(head: bytes) -> int:
    """The Content-Length of an answer."""
    line = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    return int(line.split(b":")[1])


def parse_time(text: bytes) -> float:
    """Unix seconds for a document's time."""
    return parse_iso_time(text.decode()).timestamp()


def share_of(values: list[float], share: float) -> float:
    """That quantile of the values, in their unit; infinite where nothing was answered."""
    return sorted(values)[int(len(values) * share)] if values else math.inf


if __name__ == "__main__":
    kind, host, port, size, seconds, *more = sys.argv[1:]
    measure: Any = {"stream": measure_stream, "requests": measure_requests, "closed": measure_closed}[kind]
    print(json.dumps(measure(host, int(port), int(size), float(seconds), *more)))
