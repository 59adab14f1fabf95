"""Where the service's limits are: many readers of history, listeners, requests, and clients that mean harm.

    python benchmarks/service_limits.py [--seconds 20] [--only history,listeners,saturation,hostile]

On loopback, on 8 simulated GPUs with a day of readings, under the shipped memory limit (as RLIMIT_DATA, which
counts more than a control group does). Prints one table; beside each row stands the load of the machine
before it. "Others" are 50 requests a second of /api/v1/devices that wait for nobody. `service_load.py` runs
this after its own rows.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.service_figures import (
    MIB,
    finish_load,
    milliseconds,
    processor_seconds,
    resident_bytes,
    start_load,
)
from gpudiag.sampler.ring import NAMES, Ring
from gpudiag.sampler.spill import Spill
from tests.api.serving import Served, machine, serving

_HERE = Path(__file__).parent
_SCENARIO = "h100x8+busy:0"
_LIMIT_BYTES = 512 * MIB  # deploy/systemd/gpudiag.service, deploy/kubernetes/daemonset.yaml
_OTHERS_RATE = 50
_READERS, _LISTENERS, _HOSTILE, _MANY_HOSTILE = 32, 1000, 50, 1000
_CONNECTIONS = 16  # that saturate
_ROUNDS = 5
_DAY_SECONDS = 86_000
_ATTACKS = ("heads", "bodies", "pipelined", "half-open", "never-reading")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--only", default=",".join(_ROWS))
    options = parser.parse_args()
    measure_limits(options.seconds, options.only.split(","))


def measure_limits(seconds: float, only: list[str]) -> None:
    """Print the rows of those names."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 8192)), hard))
    names = ("uvicorn", "uvloop", "httptools")
    print(
        f"{platform.system()} {platform.release()}, {os.cpu_count()} processors,"
        f" Python {platform.python_version()}, " + ", ".join(f"{name} {version(name)}" for name in names)
    )
    print(f"{'load':>5}  {'what':44} {'aim':22} measured")
    with machine(_SCENARIO) as session, tempfile.TemporaryDirectory() as folder:
        state = Path(folder)
        with serving(session, state, as_shipped=True) as service:
            service.wait_for_data()
            uuids = [device["uuid"] for device in service.live()["devices"]]
        (readings,) = state.glob("service-simulated/*/readings")
        fill_day(readings, uuids)
        with serving(session, state, as_shipped=True) as service:
            resource.prlimit(service.process.pid, resource.RLIMIT_DATA, (_LIMIT_BYTES, _LIMIT_BYTES))
            service.wait_for_data()
            for name in only:
                _ROWS[name](service, seconds)


def fill_day(folder: Path, uuids: list[str]) -> None:
    """Write a day of readings where the service will find them."""
    ring = Ring()
    now = int(time.time())
    for at in (*range(now - _DAY_SECONDS, now - 3600, 10), *range(now - 3600, now)):
        for number, uuid in enumerate(uuids):
            ring.add(
                uuid, at, {name: float((at * (number + 3) + place) % 997) for place, name in enumerate(NAMES)}
            )
    Spill(folder).save(ring)


def row(what: str, aim: str, measure: Callable[[], str]) -> None:
    """Print one row, with the load before it."""
    load = os.getloadavg()[0]
    print(f"{load:5.1f}  {what:44} {aim:22} {measure()}", flush=True)


def measure_history(service: Served, seconds: float) -> None:
    """What readers of a day's history cost the others; each asks again a second after it has the answer."""
    began = time.time() - _DAY_SECONDS
    same = f"/api/v1/history?from={began:.0f}"
    differing = ",".join(f"/api/v1/history?from={began + number:.0f}" for number in range(_READERS))
    row("nobody else", "", lambda: others(service, seconds, None))
    for words, paths in (("the same day", same), ("a day of its own each", differing)):
        row(
            f"{_READERS} readers of history, {words}",
            "p99 of others 50 ms",
            partial(
                others,
                service,
                seconds,
                partial(start_load, service, "closed", _READERS, seconds + 2, paths, "1"),
            ),
        )


def measure_listeners(service: Served, seconds: float) -> None:
    """How late a tick reaches 1,000 listeners, beside a socket that only sends."""

    def by_service() -> str:
        spent, began = processor_seconds(service.process.pid), time.monotonic()
        seen = finish_load(start_load(service, "stream", _LISTENERS, seconds))
        share = (processor_seconds(service.process.pid) - spent) / (time.monotonic() - began)
        return f"{delays(seen)}, {seen['fewest']} to {seen['most']} ticks each, {share:.1%} of a core"

    row(f"{_LISTENERS} listeners", "p99 100 ms", by_service)
    with tempfile.NamedTemporaryFile() as file:
        file.write(first_event(service))
        file.flush()
        with Bare("ticks", file.name, str(_LISTENERS)) as place:
            row(
                "  the same from a bare socket loop",
                "",
                lambda: delays(finish_load(start_load(place, "stream", _LISTENERS, seconds))),
            )


def measure_saturation(service: Served, seconds: float) -> None:
    """Answers a second of /api/v1/devices, against a bare uvicorn app that sends the same bytes."""
    packed = httpx.stream("GET", f"{service.url}/api/v1/devices", headers={"Accept-Encoding": "gzip"})
    with packed as raw, tempfile.NamedTemporaryFile() as file:
        file.write(b"".join(raw.iter_raw()))
        file.flush()
        headers = {name: value for name, value in raw.headers.items() if name != "date"}
        with Bare("app", file.name, json.dumps(headers)) as place:
            each = max(2.0, seconds / _ROUNDS)
            rounds = [(saturate(service, each), saturate(place, each)) for _ in range(_ROUNDS)]

    def figures() -> str:
        ours, theirs = (sorted(pair[side] for pair in rounds)[_ROUNDS // 2] for side in (0, 1))
        return (
            f"{ours[0]:.0f} a second, bare {theirs[0]:.0f}: {ours[0] / theirs[0]:.2f} of it; by the server's"
            f" processor time {ours[1]:.0f} and {theirs[1]:.0f} a second: {ours[1] / theirs[1]:.2f}"
        )

    row(f"/api/v1/devices, {_CONNECTIONS} connections, saturated", "0.8 of bare uvicorn", figures)


def saturate(place: Any, seconds: float) -> tuple[float, float]:
    """Answers a second, by the clock and by the server's processor time."""
    pid = place.process.pid
    spent = processor_seconds(pid)
    seen = finish_load(start_load(place, "closed", _CONNECTIONS, seconds, "/api/v1/devices"))
    if seen["failed"]:
        raise SystemExit(f"{seen['failed']} answers were not 200")
    return seen["answered"] / seen["seconds"], seen["answered"] / (processor_seconds(pid) - spent)


def measure_hostile(service: Served, seconds: float) -> None:
    """What hostile clients cost the others, and how much memory the service takes for them."""
    for clients in (_HOSTILE, _MANY_HOSTILE):
        for kind in _ATTACKS:
            row(
                f"{clients} hostile clients: {kind}",
                "served, under 512 MiB",
                partial(others, service, seconds, partial(start_attack, service, kind, clients, seconds + 2)),
            )


def others(service: Served, seconds: float, begin: Callable[[], subprocess.Popen[str]] | None) -> str:
    """How others are served while that goes on, and the most memory that the service takes."""
    going_on = None if begin is None else begin()
    time.sleep(1.0)
    asked = start_load(service, "requests", _OTHERS_RATE, seconds)
    most = 0
    while asked.poll() is None:
        most = max(most, resident_bytes(service.process.pid))
        time.sleep(0.05)
    seen = finish_load(asked)
    other = "" if going_on is None else describe_other(finish_load(going_on))
    return (
        f"others {seen['good']} of {seen['sent']}, p50 {milliseconds(seen['p50'])}, p99"
        f" {milliseconds(seen['p99'])}, worst {milliseconds(seen['worst'])}; {most / MIB:.0f} MiB{other}"
    )


def describe_other(seen: dict[str, Any]) -> str:
    """What the other load has done."""
    if "cut" in seen:
        return f"; {seen['sent_bytes'] / MIB:.0f} MiB sent, {seen['cut']} connections cut off"
    return f"; {seen['answered']} answers, {seen['bytes'] / MIB / seen['seconds']:.1f} MiB/s"


def delays(seen: dict[str, Any]) -> str:
    """How late ticks were."""
    return (
        f"p50 {milliseconds(seen['p50'])}, p99 {milliseconds(seen['p99'])}, worst"
        f" {milliseconds(seen['worst'])} (read {milliseconds(seen['read_late_p99'])} later, p99)"
    )


def first_event(service: Served) -> bytes:
    """A tick as the stream has it."""
    with httpx.stream("GET", f"{service.url}/api/v1/stream") as stream:
        received = b""
        for part in stream.iter_raw():
            received += part
            if received.count(b"\n\n") >= 2:
                break
    return received.split(b"\n\n")[1] + b"\n\n"


class Bare:
    """A process of `bare_service.py` with its address."""

    def __init__(self, *arguments: str) -> None:
        """Start it."""
        command = [sys.executable, str(_HERE / "bare_service.py"), *arguments]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL
        )
        port = self.process.stdout.readline() if self.process.stdout else ""
        self.url = f"http://127.0.0.1:{int(port)}"

    def __enter__(self) -> "Bare":
        """It, as long as it is needed."""
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()


def start_attack(service: Served, kind: str, clients: int, seconds: float) -> subprocess.Popen[str]:
    """Those clients, at that service."""
    port = service.url.rpartition(":")[2]
    command = [sys.executable, str(_HERE / "hostile_load.py"), kind, port, str(clients), str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


_ROWS: dict[str, Callable[[Served, float], None]] = {
    "history": measure_history,
    "listeners": measure_listeners,
    "saturation": measure_saturation,
    "hostile": measure_hostile,
}

if __name__ == "__main__":
    main()
