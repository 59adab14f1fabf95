"""What a real Prometheus answers to the expressions of public boards and rules, on simulated machines.

    python benchmarks/public_expressions.py [--seconds 90] [--markdown]

Starts `gpudiag serve` on eight busy H100s and on one that is cut into MIG instances, has Prometheus (Debian's
package) scrape both in dcgm-exporter's dialect as OpenMetrics, and evaluates every expression of
`tests/corpus/metrics/public_expressions.tsv`. Prints those without data with the reason that the list has,
and a count by where they are from; `--markdown` prints the table of docs/metrics-dcgm.md. Labels of the
target that the expressions ask for (a cloud's names) are set in the scrape configuration, and variables of
Grafana stand for all there is. Nobody has the GPUs: what asks for a pod or a job has no data here, and
`tests/unit/render/test_public_expressions.py` holds it against machines whose GPUs are had.
"""

import argparse
import json
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.api.serving import machine, serving
from tests.unit.render.promql import fill_variables

EXPRESSIONS = Path(__file__).resolve().parents[1] / "tests" / "corpus" / "metrics" / "public_expressions.tsv"
_MACHINES = ("h100x8+busy:0+busy:1+busy:2+busy:3", "h100-mig+busy:0")
_TARGET_LABELS = {
    "cluster": "c1",
    "cluster_name": "c1",
    "oci_name": "node-1",
    "instance_shape": "BM.GPU.H100.8",
    "slurm_nodeset_name": "rack-1",
    "node": "node-1",
}
_OF_OWNERS = re.compile(r"exported_pod|exported_namespace|namespace|hpc_job|\bpod\b")
_CONDITION = re.compile(r"[<>=]=?\s*[\d.]+\)*$")
_LONG = re.compile(r"\[\d+d:")
_START_SECONDS = 120.0


@contextmanager
def prometheus(folder: Path, targets: list[str]) -> Iterator[httpx.Client]:
    """A Prometheus that scrapes the targets every second, as a client of its API."""
    labels = "\n".join(f"          {name}: {word}" for name, word in _TARGET_LABELS.items())
    (folder / "prometheus.yml").write_text(
        f"""global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: dcgm
    params: {{dialect: [dcgm], host_label: [both]}}
    static_configs:
      - targets: {json.dumps(targets)}
        labels:
{labels}
"""
    )
    with socket.socket() as probe:  # Prometheus does not report which port it got
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [
        "prometheus",
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address={address}",
    ]
    log = folder / "prometheus.log"
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        with httpx.Client(base_url=f"http://{address}", timeout=60.0) as client:
            wait_until_ready(client, process, log)
            yield client
    finally:
        process.terminate()
        process.wait(10)


def wait_until_ready(client: httpx.Client, process: subprocess.Popen[bytes], log: Path) -> None:
    """Return once Prometheus answers."""
    until = time.monotonic() + _START_SECONDS
    while True:
        try:
            if client.get("/-/ready").status_code == 200:
                return
        except httpx.TransportError:
            pass
        if process.poll() is not None or time.monotonic() > until:
            raise SystemExit(f"Prometheus did not start: {log.read_text()[-800:]}")
        time.sleep(0.2)


def evaluate(client: httpx.Client, expression: str) -> tuple[int, str]:
    """How many series the expression gives now, and Prometheus' words where it refuses it."""
    answer = client.get("/api/v1/query", params={"query": fill_variables(expression)})
    document: dict[str, Any] = answer.json()
    if document["status"] != "success":
        return 0, document["error"]
    return len(document["data"]["result"]), ""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=90.0)
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args()
    if shutil.which("prometheus") is None:
        raise SystemExit("prometheus is not installed: tools/install-system-packages")
    rows = [line.split("\t") for line in EXPRESSIONS.read_text().splitlines() if not line.startswith("#")]
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        services = [
            stack.enter_context(
                serving(stack.enter_context(machine(spec)), folder / str(number), as_shipped=True)
            )
            for number, spec in enumerate(_MACHINES)
        ]
        for service in services:
            service.wait_for_data()
        client = stack.enter_context(
            prometheus(folder, [urlsplit(service.url).netloc for service in services])
        )
        time.sleep(options.seconds)
        answers = [
            (expression, source, why, *evaluate(client, expression)) for expression, source, why in rows
        ]
        health = client.get("/api/v1/targets").json()["data"]["activeTargets"]
    for target in health:
        print(f"target {target['scrapeUrl']}: {target['health']} {target['lastError']}".rstrip())
    print_table(answers, markdown=options.markdown)


def print_table(answers: list[tuple[str, str, str, int, str]], *, markdown: bool) -> None:
    """Print how many have data by where they are from, and each that has none, with the reason."""
    total, seen = (
        Counter(row[1].partition(":")[0] for row in answers),
        Counter(row[1].partition(":")[0] for row in answers if row[3]),
    )
    if markdown:
        print("| from | expressions | with data |\n| --- | --- | --- |")
    for source, count in sorted(total.items()):
        print(
            f"| {source} | {count} | {seen[source]} |"
            if markdown
            else f"{source:<42} {seen[source]:>3} of {count}"
        )
    print(f"\n{sum(seen.values())} of {len(answers)} have data; the others:\n")
    for expression, _source, why, count, error in answers:
        if not count:
            print(f"- `{expression}`: {error or why or reason_of(expression)}")


def reason_of(expression: str) -> str:
    """Why an expression whose series are there gives nothing on these machines."""
    if _OF_OWNERS.search(expression):
        return "nobody has these GPUs"
    if _CONDITION.search(expression):
        return "a condition that a healthy machine does not meet"
    return "more than this run has seen" if _LONG.search(expression) else "NO REASON KNOWN"


if __name__ == "__main__":
    main()
