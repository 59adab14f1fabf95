r"""What the service costs, and how it behaves under load; on loopback, on 8 simulated GPUs.

    python benchmarks/service_load.py [--clients 500] [--seconds 60] [--rate 1000] [--others FOLDER] \
        [--scenario gh200+busy:0+driver-costs] [--alone]

Prints processor shares and memory of service and sampler, idle and with that many listeners of the live
stream; how late a tick reaches them; the latency of /api/v1/devices at a rate that does not wait, on a
healthy machine and while a call of the driver hangs; the size and time of a scrape; then what nvitop-exporter
and gpustat take on the same machine, where FOLDER (by default that of this Python) has them; then the table
of `service_limits.py`. The load is a process of its own (`socket_load.py`). A simulated GPU answers at once:
what a real driver takes comes on top, or with `+driver-costs` is in it as it was on an H100
(gpudiag/simulate/driver_costs.toml).
"""

import argparse
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.service_figures import (
    MIB,
    children_seconds,
    finish_load,
    milliseconds,
    processor_seconds,
    proportional_bytes,
    resident_bytes,
    start_load,
    together_bytes,
)
from benchmarks.service_limits import measure_limits
from gpudiag.simulate.session import Session
from tests.api.serving import Served, descendants, machine, serving

_SETTLE_SECONDS = 5.0  # as in socket_load.py
_HEALTHY = "h100x8+busy:0"
_FORGOTTEN_SECONDS = 22.0  # the sampler slows down 20 s after the last look (gpudiag/service/watch.py)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--alone", action="store_true", help="one look a second, then none; nothing else")
    parser.add_argument("--scenario", default=_HEALTHY)
    parser.add_argument("--others", type=Path, default=Path(sys.executable).parent)
    options = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 8 * options.clients)), hard))
    short = min(options.seconds, 20.0)
    with machine(options.scenario) as session, tempfile.TemporaryDirectory() as folder:
        with serving(session, Path(folder), as_shipped=True) as service:
            service.wait_for_data()
            time.sleep(_SETTLE_SECONDS)
            idle = measure_idle(service, options.seconds)
            if options.alone:
                measure_alone(service, options.seconds)
                return
            measure_scrape(service)
            measure_streams(service, options.clients, options.seconds, idle)
            measure_rate(service, options.rate, short, "healthy")
            last = len(service.live()["devices"]) - 1
            service.change(f"{options.scenario}+hang:{last}")
            service.wait(lambda: service.live()["sampler"]["state"] == "wedged")
            measure_rate(service, options.rate, short, "while a call hangs")
            service.change(options.scenario)
        measure_exporter(session, options.others / "nvitop-exporter", short)
        measure_polling(session, options.others / "gpustat", short)
    measure_limits(short, ["history", "listeners", "saturation", "hostile"])


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
    proportional = sum(proportional_bytes(pid) for pid in (service.process.pid, sampler))
    together = together_bytes([service.process.pid, sampler])
    print(f"one look a second, {lasted:.0f} s: service {shares[0]:.2%} of a core, {memory[0] / MIB:.1f} MiB")
    print(f"  sampler {shares[1]:.2%} of a core, {memory[1] / MIB:.1f} MiB")
    print(
        f"  together {sum(memory) / MIB:.1f} MiB resident (shared pages counted twice), {together / MIB:.1f}"
        f" MiB with "
        f"those once, {proportional / MIB:.1f} MiB of PSS beside the other programs of this machine",
        flush=True,
    )
    return shares[0], memory[0]


def measure_alone(service: Served, seconds: float) -> None:
    """The processor shares of service, sampler and short-lived children while nobody looks; prints them."""
    time.sleep(_FORGOTTEN_SECONDS)
    pids = (service.process.pid, sampler_pid(service))
    before, of_children = [processor_seconds(pid) for pid in pids], children_seconds(pids[0])
    began = time.monotonic()
    time.sleep(seconds)
    lasted = time.monotonic() - began
    shares = [(processor_seconds(pid) - spent) / lasted for pid, spent in zip(pids, before, strict=True)]
    looks = (children_seconds(pids[0]) - of_children) / lasted
    print(
        f"nobody looks, {seconds:.0f} s: service {shares[0]:.2%} of a core, sampler {shares[1]:.2%}, together"
        f" "
        f"{sum(shares):.2%}; children that look at the host and end {looks:.2%}",
        flush=True,
    )


def measure_scrape(service: Served) -> None:
    """Time and size of a scrape, each of a new tick; and of the same once more, which is kept."""
    times, again, plain, packed = [], [], 0, 0
    for _ in range(10):
        time.sleep(1.1)
        began = time.perf_counter()
        response = service.get("/metrics", headers={"Accept-Encoding": "gzip"})
        times.append(time.perf_counter() - began)
        plain, packed = len(response.content), int(response.headers["content-length"])
        began = time.perf_counter()
        service.get("/healthz")
        again.append(time.perf_counter() - began)
    print(
        f"scrape: {plain / 1000:.1f} kB, {packed / 1000:.1f} kB on the wire (gzip), "
        f"p50 {statistics.median(times) * 1e3:.1f} ms, worst {max(times) * 1e3:.1f} ms, client included "
        f"(/healthz by the same client: {statistics.median(again) * 1e3:.1f} ms)",
        flush=True,
    )


def measure_streams(service: Served, clients: int, seconds: float, idle: tuple[float, int]) -> None:
    """How late ticks reach that many listeners, and what they cost more than idle."""
    load = start_load(service, "stream", clients, seconds)
    time.sleep(_SETTLE_SECONDS + 1.0)
    pid = service.process.pid
    spent, began = processor_seconds(pid), time.monotonic()
    time.sleep(max(1.0, seconds - 3.0))
    share = (processor_seconds(pid) - spent) / (time.monotonic() - began)
    memory = resident_bytes(pid)
    seen = finish_load(load)
    print(
        f"{clients} listeners, {seconds:.0f} s: {seen['ticks']} ticks, fewest"
        f" {seen['fewest']}, most {seen['most']} each"
    )
    print(
        f"  from the tick to the listener's socket: p50 {milliseconds(seen['p50'])}, "
        f"p99 {milliseconds(seen['p99'])}, worst {milliseconds(seen['worst'])} "
        f"(the load read {milliseconds(seen['read_late_p99'])} later, p99)"
    )
    print(
        f"  service {share:.2%} of a core ({share - idle[0]:+.2%} to one look a second), "
        f"{memory / MIB:.1f} MiB ({(memory - idle[1]) / MIB:+.1f})",
        flush=True,
    )


def measure_rate(service: Served, rate: int, seconds: float, when: str) -> None:
    """Latency at a steady rate that does not wait for answers."""
    pid = service.process.pid
    load = start_load(service, "requests", rate, seconds)
    spent, began = processor_seconds(pid), time.monotonic()
    seen = finish_load(load)
    share = (processor_seconds(pid) - spent) / (time.monotonic() - began)
    print(
        f"{rate} requests a second of /api/v1/devices, {when}, {seconds:.0f} s: "
        f"{seen['good']} of {seen['sent']} answered 200, p50 {milliseconds(seen['p50'])}, "
        f"p99 {milliseconds(seen['p99'])}, worst {milliseconds(seen['worst'])}, {share:.0%} of a core "
        f"(sent {milliseconds(seen['sent_late_p99'])} late, p99)",
        flush=True,
    )


def measure_exporter(session: Session, program: Path, seconds: float) -> None:
    """What nvitop-exporter takes, at its own pace of a second, scraped once a second."""
    if not program.exists():
        print(f"{program} is not there: pip install nvitop-exporter")
        return
    url = "http://127.0.0.1:18769/metrics"
    command = [str(program), "--port", "18769", "--bind-address", "127.0.0.1"]
    with subprocess.Popen(
        command, env=session.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            wait_for_answer(url)
            spent, began, times, size = processor_seconds(process.pid), time.monotonic(), [], 0
            while time.monotonic() - began < seconds:
                asked = time.perf_counter()
                size = len(httpx.get(url, timeout=10.0).content)
                times.append(time.perf_counter() - asked)
                time.sleep(1.0)
            share = (processor_seconds(process.pid) - spent) / (time.monotonic() - began)
            memory = resident_bytes(process.pid)
        finally:
            process.send_signal(signal.SIGKILL)
    print(
        f"nvitop-exporter, one scrape a second: {share:.2%} of a core, {memory / MIB:.1f} MiB, "
        f"{size / 1000:.1f} kB, p50 {statistics.median(times) * 1e3:.1f} ms",
        flush=True,
    )


def wait_for_answer(url: str) -> None:
    """Return once somebody answers there."""
    for _ in range(300):
        try:
            httpx.get(url, timeout=10.0)
        except httpx.TransportError:
            time.sleep(0.1)
        else:
            return
    raise SystemExit(f"nobody answers at {url}")


def measure_polling(session: Session, program: Path, seconds: float) -> None:
    """What asking gpustat once a second takes."""
    if not program.exists():
        print(f"{program} is not there: pip install gpustat")
        return
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began, calls = time.monotonic(), 0
    while time.monotonic() - began < seconds:
        subprocess.run([str(program), "--json"], env=session.environment, capture_output=True, check=True)
        calls += 1
        time.sleep(max(0.0, began + calls - time.monotonic()))
    lasted = time.monotonic() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(
        f"gpustat --json once a second: {spent / lasted:.2%} of a core,"
        f" {lasted / calls:.2f} s a call with its wait"
    )


def sampler_pid(service: Served) -> int:
    """The sampler's child."""
    for pid in descendants(service.process.pid):
        if b"gpudiag.sampler.child" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    raise SystemExit("no sampler")


if __name__ == "__main__":
    print(json.dumps({"python": sys.version.split()[0], "processors": os.cpu_count()}))
    main()
