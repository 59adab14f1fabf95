"""A real Prometheus and Alertmanager over simulated machines, and a receiver of what a person would get.

Prometheus and Alertmanager are Debian's (`tools/install-system-packages`). Each machine is a real `gpudiag
serve` on a simulated machine, which is changed while it is watched. The rules are the shipped ones, with
their own `for:`; Alertmanager passes each alert on by itself and at once, and inhibits nothing: one page for
one fault is the rules' doing.
"""

import contextlib
import json
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx

from gpudiag.simulate.loader import load_scenario
from gpudiag.simulate.scenario import Scenario
from gpudiag.simulate.session import Session, open_session
from tests.api.serving import Served, serving

RULES = Path(__file__).resolve().parents[1] / "deploy" / "prometheus" / "gpudiag.rules.yml"
PROGRAMS = ("prometheus", "promtool", "prometheus-alertmanager")
KERNEL_LOG = "dev/kmsg"
_START_SECONDS = 120.0
_END_SECONDS = 30.0

# --- what was received


@dataclass(frozen=True, slots=True)
class Message:
    """One alert as Alertmanager passed it on: Unix time, firing or resolved, labels and texts."""

    at: float
    firing: bool
    labels: Mapping[str, str]
    texts: Mapping[str, str]

    @property
    def name(self) -> str:
        """The alert's name."""
        return self.labels["alertname"]

    @property
    def pages(self) -> bool:
        """Whether it wakes somebody."""
        return self.labels["severity"] == "critical"


class Receiver:
    """A webhook for Alertmanager; `messages` are in the order in which they came."""

    def __init__(self) -> None:
        """Listen on a free port of this machine."""
        self.messages: list[Message] = []
        receiver = self

        class Webhook(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.messages += [
                    Message(time.time(), one["status"] == "firing", one["labels"], one["annotations"])
                    for one in json.loads(body)["alerts"]
                ]
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_words: object) -> None:
                """Be silent."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Webhook)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def about(self, host: str) -> list[Message]:
        """What was received about that machine."""
        return [one for one in list(self.messages) if one.labels.get("host") == host]

    def firing(self, host: str) -> list[Message]:
        """What fires on that machine now."""
        last = {tuple(sorted(one.labels.items())): one for one in self.about(host)}
        return [one for one in last.values() if one.firing]


# --- Prometheus and Alertmanager


class Alerting:
    """A running Prometheus and Alertmanager, and the receiver."""

    def __init__(self, folder: Path, scrape_seconds: float, rules: str) -> None:
        """Write the configuration into `folder`; nothing runs yet."""
        self.receiver = Receiver()
        self._folder = folder
        self._ports = {name: _free_port() for name in ("prometheus", "alertmanager")}
        self._targets = folder / "targets.json"
        self.url = f"http://127.0.0.1:{self._ports['prometheus']}"
        (folder / "gpudiag.rules.yml").write_text(rules)
        interval = f"{scrape_seconds * 1000:.0f}ms"
        self._write(
            "prometheus.yml",
            {
                "global": {
                    "scrape_interval": interval,
                    "scrape_timeout": interval,
                    "evaluation_interval": interval,
                },
                "rule_files": ["gpudiag.rules.yml"],
                "alerting": {
                    "alertmanagers": [
                        {"static_configs": [{"targets": [f"127.0.0.1:{self._ports['alertmanager']}"]}]}
                    ]
                },
                "scrape_configs": [
                    {"job_name": "gpu-nodes", "file_sd_configs": [{"files": [str(self._targets)]}]}
                ],
            },
        )
        webhook = {"url": self.receiver.url, "send_resolved": True, "max_alerts": 0}
        self._write(
            "alertmanager.yml",
            {
                "route": {
                    "receiver": "rig",
                    "group_by": ["..."],
                    "group_wait": "0s",
                    "group_interval": "1s",
                    "repeat_interval": "12h",
                },
                "receivers": [{"name": "rig", "webhook_configs": [webhook]}],
            },
        )
        self.watch({})

    def _write(self, name: str, document: Mapping[str, Any]) -> None:
        (self._folder / name).write_text(json.dumps(document))  # which is YAML too

    def watch(self, addresses: Mapping[str, str]) -> None:
        """Scrape these addresses, by the name of the machine."""
        newer = self._targets.with_suffix(".new")
        newer.write_text(json.dumps([{"targets": [address]} for address in addresses.values()]))
        newer.rename(self._targets)

    @contextlib.contextmanager
    def running(self) -> Iterator["Alerting"]:
        """Both programs, ready; at the end they are stopped."""
        local = "--web.listen-address=127.0.0.1"
        commands = {
            "alertmanager": [
                "prometheus-alertmanager",
                "--config.file=alertmanager.yml",
                "--storage.path=alertmanager",
                f"{local}:{self._ports['alertmanager']}",
                "--cluster.listen-address=",
            ],
            "prometheus": [
                "prometheus",
                "--config.file=prometheus.yml",
                "--storage.tsdb.path=prometheus",
                f"{local}:{self._ports['prometheus']}",
            ],
        }
        with contextlib.ExitStack() as stack:
            stack.callback(self.receiver.close)
            for name, command in commands.items():
                log = stack.enter_context((self._folder / f"{name}.log").open("wb"))
                process = subprocess.Popen(command, cwd=self._folder, stdout=log, stderr=log)
                stack.callback(_end, process)
                _wait_for(partial(self._is_ready, name), f"{name}: see {self._folder}/{name}.log")
            yield self

    def _is_ready(self, name: str) -> bool:
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"http://127.0.0.1:{self._ports[name]}/-/ready", timeout=5.0).is_success
        return False

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The instant vector of an expression: each with `metric` and `value`."""
        answer = httpx.get(f"{self.url}/api/v1/query", params={"query": expression}, timeout=30.0)
        result: list[dict[str, Any]] = answer.raise_for_status().json()["data"]["result"]
        return result

    def read_metrics(self) -> str:
        """What Prometheus reports about itself."""
        return httpx.get(f"{self.url}/metrics", timeout=30.0).raise_for_status().text

    def rule_failures(self) -> float:
        """How many evaluations of a rule have failed."""
        name = "prometheus_rule_evaluation_failures_total"
        return sum(map(float, re.findall(rf"^{name}\{{.*\}} (\S+)$", self.read_metrics(), re.MULTILINE)))


def hasten(rules: str, factor: int) -> str:
    """The rules with each `for:` and the interval divided by that."""
    return re.sub(
        r"\b(for|interval): (\d+)s", lambda found: f"{found[1]}: {1000 * int(found[2]) // factor}ms", rules
    )


def missing_program() -> str:
    """The first program that the rig needs and this machine lacks; empty where all are there."""
    return next((name for name in PROGRAMS if shutil.which(name) is None), "")


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait_for(reached: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + _START_SECONDS
    while not reached():
        if time.monotonic() > until:
            raise TimeoutError(f"not ready within {_START_SECONDS:.0f} s: {what}")
        time.sleep(0.1)


# --- a machine


def describe_machine(name: str, machine: str, faults: str = "", more: str = "") -> str:
    """The scenario file of a machine with a name of its own: `lost:3+hot:5`, and lines of TOML."""
    listed = json.dumps([fault for fault in faults.split("+") if fault])
    own = f'hostname = "{name}"\n'
    # A table may stand once in a file: lines for [host] join the name's.
    host, rest = (own, more) if "[host]" not in more else ("", more.replace("[host]\n", f"[host]\n{own}", 1))
    return f'base = "{machine}"\nfaults = {listed}\n' + (f"[host]\n{host}" if host else "") + rest


@dataclass
class Machine:
    """One machine with its service, which can be changed, and restarted at the same address."""

    name: str
    folder: Path
    session: Session
    served: Served | None = None
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @property
    def address(self) -> str:
        """Where Prometheus finds it."""
        if self.served is None:
            raise RuntimeError(f"the service of {self.name} was never started")
        return self.served.url.removeprefix("http://")

    def start(self) -> None:
        """Start its service, at the address that it had if it had one."""
        port = "0" if self.served is None else self.address.rpartition(":")[2]
        self.served = self._stack.enter_context(
            serving(self.session, self.folder / "state", "--port", port, as_shipped=True)
        )

    def stop(self) -> None:
        """Stop its service as systemd does."""
        self._stack.close()

    def change(self, scenario: Scenario) -> None:
        """Change the machine while it is watched."""
        self.session.update(scenario)

    def scenario(self, text: str) -> Scenario:
        """The scenario of a file with that text."""
        file = self.folder / "machine.toml"
        file.write_text(text)
        return load_scenario(str(file))


@contextlib.contextmanager
def machine(name: str, folder: Path, text: str) -> Iterator[Machine]:
    """A machine on which nothing runs yet; at the end its service is stopped."""
    folder.mkdir(parents=True)
    file = folder / "machine.toml"
    file.write_text(text)
    with open_session(load_scenario(str(file))) as session:
        one = Machine(name, folder, session)
        try:
            yield one
        finally:
            one.stop()


def after_reset(well: Scenario, faulty: Scenario) -> Scenario:
    """The machine after a reset of its GPU: all is well, and the kernel log still has the fault."""
    log = faulty.host.files.get(KERNEL_LOG)
    if log is None:
        return well
    return replace(well, host=replace(well.host, files={**well.host.files, KERNEL_LOG: log}))
