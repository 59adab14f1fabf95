"""What the service costs, and how it behaves under load; on loopback, on 8 simulated GPUs.

    python benchmarks/service_load.py [--clients 500] [--seconds 60] [--rate 1000]

Prints processor shares and memory of service and sampler, idle and with that many listeners of the live
stream; how late a tick reaches them; the latency of /api/v1/devices at a steady rate; the size and time of a
scrape. The listeners run in this process, on the same processors. A simulated GPU answers at once: what a
real driver takes comes on top.
"""

import argparse
import asyncio
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.api.serving import Served, descendants, machine, serving

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_MIB = 1 << 20


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rate", type=int, default=1000)
    options = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 8 * options.clients)), hard))
    with (
        tempfile.TemporaryDirectory() as folder,
        machine("h100x8+busy:0") as session,
        serving(session, Path(folder)) as service,
    ):
        service.wait_for_data()
        time.sleep(5.0)
        idle = measure_idle(service, min(options.seconds, 30.0))
        measure_scrape(service)
        asyncio.run(measure_streams(service, options.clients, options.seconds, idle))
        asyncio.run(measure_rate(service, options.rate, min(options.seconds, 20.0)))


def measure_idle(service: Served, seconds: float) -> tuple[float, int]:
    """Processor share and memory of the service with one look a second; prints the sampler's too."""
    sampler = sampler_pid(service)
    before = (processor_seconds(service.process.pid), processor_seconds(sampler))
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        service.live()
        time.sleep(1.0)
    lasted = time.monotonic() - began
    shares = [
        (processor_seconds(pid) - spent) / lasted
        for pid, spent in zip((service.process.pid, sampler), before, strict=True)
    ]
    memory = [resident_bytes(pid) for pid in (service.process.pid, sampler)]
    print(f"idle, {lasted:.0f} s: service {shares[0]:.2%} of a core, {memory[0] / _MIB:.1f} MiB")
    print(f"               sampler {shares[1]:.2%} of a core, {memory[1] / _MIB:.1f} MiB")
    print(f"               together {sum(memory) / _MIB:.1f} MiB resident (shared pages counted twice)")
    return shares[0], memory[0]


def measure_scrape(service: Served) -> None:
    """Time and size of a scrape, each of a new tick."""
    times, plain, packed = [], 0, 0
    for _ in range(10):
        time.sleep(1.1)
        began = time.perf_counter()
        response = service.get("/metrics", headers={"Accept-Encoding": "gzip"})
        times.append(time.perf_counter() - began)
        plain, packed = len(response.content), int(response.headers["content-length"])
    print(f"scrape: {plain / 1000:.1f} kB, {packed / 1000:.1f} kB on the wire (gzip), "
          f"p50 {statistics.median(times) * 1e3:.1f} ms, worst {max(times) * 1e3:.1f} ms, client included")  # fmt: skip


async def measure_streams(service: Served, clients: int, seconds: float, idle: tuple[float, int]) -> None:
    """How late ticks reach that many listeners, and what they cost more than idle."""
    delays: list[float] = []
    counts = [0] * clients
    listeners = [
        asyncio.create_task(listen(service.url, delays, counts, number)) for number in range(clients)
    ]
    await asyncio.sleep(5.0)
    delays.clear()
    counts[:] = [0] * clients
    spent, began = processor_seconds(service.process.pid), time.monotonic()
    await asyncio.sleep(seconds)
    lasted = time.monotonic() - began
    share = (processor_seconds(service.process.pid) - spent) / lasted
    memory = resident_bytes(service.process.pid)
    for listener in listeners:
        listener.cancel()
    await asyncio.gather(*listeners, return_exceptions=True)
    ticks = sorted(delays)
    print(
        f"{clients} listeners, {lasted:.0f} s: {len(ticks)} ticks, fewest {min(counts)}, most {max(counts)} each"
    )
    print(
        f"  delay p50 {ticks[len(ticks) // 2] * 1e3:.0f} ms, p99 {ticks[int(len(ticks) * 0.99)] * 1e3:.0f} ms"
    )
    print(f"  service {share:.2%} of a core ({share - idle[0]:+.2%} to idle), "
          f"{memory / _MIB:.1f} MiB ({(memory - idle[1]) / _MIB:+.1f})")  # fmt: skip


async def listen(url: str, delays: list[float], counts: list[int], number: int) -> None:
    """One listener: plain sockets, for a client library would cost more than the service."""
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 20)
    writer.write(f"GET /api/v1/stream HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
    while line := await reader.readline():
        if line.startswith(b"data: ") and b'"at": "' in line[:120]:
            at = line[line.index(b'"at": "') + 7 :].split(b'"', 1)[0].decode()
            delays.append(time.time() - parse_time(at))
            counts[number] += 1


def parse_time(text: str) -> float:
    """Unix seconds for a document's time."""
    from datetime import datetime

    return datetime.fromisoformat(text).timestamp()


async def measure_rate(service: Served, rate: int, seconds: float) -> None:
    """Latency at a steady rate, from when a request was due; 32 connections."""
    latencies: list[float] = []
    limits = httpx.Limits(max_connections=32, max_keepalive_connections=32)
    host, _, port = service.url.removeprefix("http://").partition(":")
    queue: asyncio.Queue[float] = asyncio.Queue()
    request = f"GET /api/v1/devices HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode()

    async def work() -> None:
        reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 20)
        while True:
            due = await queue.get()
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(int(length.split(b":")[1]))
            latencies.append(time.perf_counter() - due)

    workers = [asyncio.create_task(work()) for _ in range(limits.max_connections or 32)]
    spent, began = processor_seconds(service.process.pid), time.perf_counter()
    sent = 0
    while (now := time.perf_counter()) - began < seconds:
        while sent < (now - began) * rate:
            queue.put_nowait(began + sent / rate)
            sent += 1
        await asyncio.sleep(0.001)
    await asyncio.sleep(1.0)
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)
    done = sorted(latencies)
    share = (processor_seconds(service.process.pid) - spent) / seconds
    print(f"{rate} requests a second of /api/v1/devices, {seconds:.0f} s: {len(done)} of {sent} answered, "
          f"p50 {done[len(done) // 2] * 1e3:.1f} ms, p99 {done[int(len(done) * 0.99)] * 1e3:.1f} ms, "
          f"{share:.0%} of a core")  # fmt: skip


def sampler_pid(service: Served) -> int:
    """The sampler's child."""
    for pid in descendants(service.process.pid):
        if b"gpudiag.sampler.child" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    raise SystemExit("no sampler")


def processor_seconds(pid: int) -> float:
    """Processor time that a process has used."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    fields = stat[stat.rindex(")") + 2 :].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND


def resident_bytes(pid: int) -> int:
    """Memory of a process that is in RAM."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


if __name__ == "__main__":
    print(json.dumps({"python": sys.version.split()[0], "processors": os.cpu_count()}))
    main()
