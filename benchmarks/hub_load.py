"""What a hub of 50 machines costs, how soon it answers, and what it shows of bad ones.

    python benchmarks/hub_load.py [--machines 50] [--bad 10] [--seconds 30] [--rate 50] [--viewers 20]

The machines are sockets in one process (`tests/fake_machines.py`), which answer with the document of a real
service on 8 simulated GPUs, each under a name of its own: 50 services would take more than two processors by
themselves. The hub is `gpudiag serve --hub` as shipped. Each line is measured while all are well, and then
with the bad ones among them; the last column is the ratio to the service of one machine, measured in the same
run. What a user would pick instead, a browser tab a machine, is the line `one machine`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.service_figures import (
    MIB,
    finish_load,
    milliseconds,
    processor_seconds,
    resident_bytes,
    start_load,
)
from tests.api.serving import Served, machine, serving
from tests.fake_machines import FAILED, FakeMachine, machines_on_sockets

BAD = (
    "hang",
    "drip",
    "lie:no JSON",
    "lie:nested without end",
    "huge",
    "endless",
    "old",
    "frozen",
    "clock",
    "closed",
)
_ALL_WELL = "all well"
_SETTLE_SECONDS = 8.0
_FORGOTTEN_SECONDS = 25.0  # the hub asks more rarely 20 s after the last look (gpudiag/fleet/hub.py)
_HERE: Any = SimpleNamespace(environment=dict(os.environ))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--machines", type=int, default=50)
    parser.add_argument("--bad", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--rate", type=int, default=50)
    parser.add_argument("--viewers", type=int, default=20)
    parser.add_argument("--serve-machines", metavar="FILE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve_machines:
        serve_machines(Path(options.serve_machines))
        return
    print(
        json.dumps({"python": sys.version.split()[0], "processors": os.cpu_count(), "load": os.getloadavg()})
    )
    with tempfile.TemporaryDirectory() as folder:
        with (
            machine("h100x8+busy:0") as session,
            serving(session, Path(folder, "one"), as_shipped=True) as one,
        ):
            one.wait_for_data()
            base = one.live()
            alone = measure_page(one, "one machine", "/", options, 0.0)
        for bad in (0, options.bad):
            plan = {"machines": options.machines, "bad": bad, "base": base}
            measure_hub(Path(folder, f"hub-{bad}"), plan, options, alone)


def measure_hub(folder: Path, plan: dict[str, Any], options: argparse.Namespace, alone: float) -> None:
    """Start the machines and a hub over them; print what it costs and shows."""
    folder.mkdir()
    (folder / "plan.json").write_text(json.dumps(plan))
    name = f"{plan['bad']} of {plan['machines']} bad" if plan["bad"] else _ALL_WELL
    command = [sys.executable, __file__, "--serve-machines", str(folder / "plan.json")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as machines:
        assert machines.stdin is not None  # noqa: S101 - a pipe was asked for
        assert machines.stdout is not None  # noqa: S101 - as above
        kinds = json.loads(machines.stdout.readline())  # by address
        with serving(_HERE, folder / "state", "--hub", ",".join(kinds), as_shipped=True) as hub:
            hub.wait(lambda: hub.get("/api/v1/machines").status_code == 200)
            time.sleep(_SETTLE_SECONDS)
            measure_page(hub, f"hub, {name}", "/", options, alone)
            measure_page(hub, f"hub, {name}", "/api/v1/machines", options, alone)
            measure_viewers(hub, name, options)
            measure_unwatched(hub, name, options)
            show(hub.get("/api/v1/machines").json(), kinds)
        machines.stdin.close()


def measure_page(service: Served, name: str, path: str, options: argparse.Namespace, alone: float) -> float:
    """The latency of a page at a rate that does not wait, and its cost; its p99 in seconds."""
    size = len(service.get(path, headers={"Accept-Encoding": "gzip"}).content)
    pid = service.process.pid
    load = start_load(service, "requests", options.rate, options.seconds, path)
    spent, began = processor_seconds(pid), time.monotonic()
    seen = finish_load(load)
    share = (processor_seconds(pid) - spent) / (time.monotonic() - began)
    ratio = f", {seen['p99'] / alone:.1f} times that of one machine" if alone else ""
    print(
        f"{name}: {path}, {size / 1000:.0f} kB, {options.rate} a second: {seen['good']} of {seen['sent']}"
        f" answered, p50 {milliseconds(seen['p50'])}, p99 {milliseconds(seen['p99'])}{ratio}, {share:.1%} of"
        f" a core (sent {milliseconds(seen['sent_late_p99'])} late, p99)",
        flush=True,
    )
    return float(seen["p99"])


def measure_viewers(hub: Served, name: str, options: argparse.Namespace) -> None:
    """What so many viewers cost, and how late the machines' state reaches them."""
    pid = hub.process.pid
    load = start_load(hub, "stream", options.viewers, options.seconds)
    time.sleep(_SETTLE_SECONDS)
    spent, began = processor_seconds(pid), time.monotonic()
    time.sleep(max(1.0, options.seconds - _SETTLE_SECONDS))
    share = (processor_seconds(pid) - spent) / (time.monotonic() - began)
    memory = resident_bytes(pid)
    seen = finish_load(load)
    print(
        f"hub, {name}: {options.viewers} viewers: {share:.1%} of a core, {memory / MIB:.0f} MiB, "
        f"{seen['fewest']} to {seen['most']} documents each, p99 {milliseconds(seen['p99'])} late",
        flush=True,
    )


def measure_unwatched(hub: Served, name: str, options: argparse.Namespace) -> None:
    """What the hub costs while nobody looks."""
    time.sleep(_FORGOTTEN_SECONDS)
    pid = hub.process.pid
    spent, began = processor_seconds(pid), time.monotonic()
    time.sleep(options.seconds)
    share = (processor_seconds(pid) - spent) / (time.monotonic() - began)
    print(f"hub, {name}: nobody looks: {share:.1%} of a core", flush=True)


def show(document: dict[str, Any], kinds: dict[str, str]) -> None:
    """What the hub shows of each kind of machine."""
    print(json.dumps(document["counts"]))
    shown = Counter(
        (
            kinds[one["name"]],
            one["state"],
            one["verdict"],
            (one["reason"] or "; ".join(one["notes"]) or one["report"]["headline"])[:110],
        )
        for one in document["machines"]
    )
    for (kind, state, verdict, words), count in shown.items():
        print(f"  {count:3} {kind:24} {state:10} {verdict}: {words}", flush=True)


def serve_machines(file: Path) -> None:
    """Serve the machines of a plan until standard input ends; prints the kind of each address."""
    plan = json.loads(file.read_text())
    fakes = [make_machine(number, plan) for number in range(plan["machines"])]
    with machines_on_sockets(fakes):
        print(
            json.dumps({fake.address: kind_of(number, plan) for number, fake in enumerate(fakes)}), flush=True
        )
        while sys.stdin.read(1):
            pass


def kind_of(number: int, plan: dict[str, Any]) -> str:
    """The kind of that machine: the bad ones stand among the others."""
    return BAD[number % len(BAD)] if number < plan["bad"] else "fail" if number % 17 == 16 else "good"


def make_machine(number: int, plan: dict[str, Any]) -> FakeMachine:
    """That machine of the plan."""
    kind = kind_of(number, plan)
    made = FakeMachine(f"gpu{number:02}", base=plan["base"])
    if kind == "fail":
        made.changes = FAILED
    elif kind == "clock":
        made.clock_seconds = 3600.0
    elif kind != "good":
        made.kind = kind
    return made


if __name__ == "__main__":
    main()
