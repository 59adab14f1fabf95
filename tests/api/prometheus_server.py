"""A real Prometheus that scrapes services every second, and answers queries as a board asks them."""

import contextlib
import json
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
import yaml

INSTALLED = shutil.which("prometheus") is not None
START_SECONDS = 60.0
END_SECONDS = 30.0
RATE_INTERVAL = "30s"  # for $__rate_interval, which Grafana makes from the width of the board


class Prometheus:
    def __init__(self, port: int, log: Path) -> None:
        self.log = log
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30.0)

    def query(self, expression: str) -> list[dict]:
        """The series that the expression gives now."""
        answer = self.client.get("/api/v1/query", params={"query": expression})
        document = answer.json()
        assert document["status"] == "success", f"{expression}: {document.get('error')}"
        return document["data"]["result"]

    def wait(self, reached, seconds: float = START_SECONDS):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with contextlib.suppress(httpx.TransportError, json.JSONDecodeError):
                answer = reached()
                if answer:
                    return answer
            time.sleep(0.2)
        raise AssertionError(f"not reached within {seconds} s; the log ends: {self.log.read_text()[-1500:]}")


@contextlib.contextmanager
def prometheus(
    folder: Path, jobs: Mapping[str, tuple[list[str], dict[str, list[str]]]]
) -> Iterator[Prometheus]:
    """A Prometheus with its data in that folder.

    Each job has addresses to scrape, and the parameters to do it with.
    """
    folder.mkdir(parents=True, exist_ok=True)
    scrapes = [
        {"job_name": name, "params": parameters, "static_configs": [{"targets": addresses}]}
        for name, (addresses, parameters) in jobs.items()
    ]
    config = {"global": {"scrape_interval": "1s"}, "scrape_configs": scrapes}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    port, log = _free_port(), folder / "log"
    arguments = (
        "--config.file=prometheus.yml",
        "--storage.tsdb.path=data",
        f"--web.listen-address=127.0.0.1:{port}",
        "--storage.tsdb.retention.time=1h",
        "--log.level=warn",
    )
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["prometheus", *arguments],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    started = Prometheus(port, log)
    try:
        with started.client:
            started.wait(lambda: started.client.get("/-/ready").status_code == 200)
            yield started
    finally:
        process.terminate()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(END_SECONDS)


def with_variables(expression: str, variables: Mapping[str, str]) -> str:
    """The expression as Grafana sends it: `$name` and `${name}` replaced; All is `.*`."""
    known = {"__rate_interval": RATE_INTERVAL, "__interval": RATE_INTERVAL, **variables}
    return re.sub(r"\$\{?(\w+)\}?", lambda found: known[found[1]], expression)


def _free_port() -> int:
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        return tried.getsockname()[1]
