"""Series, bytes and time of a scrape, in both dialects and formats, on eight simulated H100s.

    python benchmarks/scrape.py [--gpudiag COMMAND ...] [--scrapes 40]

COMMAND is a `gpudiag` whose service is scraped too, such as that of an earlier version: one table each, in
one run. The time is that of a whole request over loopback, of which each waits for a new tick, so that none
comes from the cache.
"""

import argparse
import gzip
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpudiag.simulate.session import Session
from tests.api.serving import machine
from tests.warm_start import IMPORT_PATH

_MACHINE = "h100x8+busy:0+busy:1+busy:2+busy:3"
_OPENMETRICS = {"Accept": "application/openmetrics-text;version=1.0.0"}
_PAGES: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("native", "/metrics", {}),
    ("native, full", "/metrics?full=1", {}),
    ("native, OpenMetrics", "/metrics", _OPENMETRICS),
    ("dcgm", "/metrics?dialect=dcgm", {}),
    ("dcgm, OpenMetrics", "/metrics?dialect=dcgm", _OPENMETRICS),
)
_START_SECONDS = 120.0
_WARM_SECONDS = 15.0  # until what needs two looks is there
_TICK_SECONDS = 1.1


def measure(command: list[str], session: Session, folder: Path, scrapes: int) -> None:
    """Print the table of one service."""
    log = folder / "log"
    own = command[0] == sys.executable
    environment = {**session.environment, "GPUDIAG_STATE_DIR": str(folder)}
    environment |= {"PYTHONPATH": IMPORT_PATH} if own else {}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "serve", "--port", "0"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        until = time.monotonic() + _START_SECONDS
        while (found := re.search(r"http://127\.0\.0\.1:\d+", log.read_text())) is None:
            if process.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"the service did not start: {log.read_text()[-800:]}")
            time.sleep(0.2)
        with httpx.Client(base_url=found[0], timeout=30.0) as client:
            while client.get("/readyz").status_code != 200:
                time.sleep(0.2)
            time.sleep(_WARM_SECONDS)
            for name, path, headers in _PAGES:
                print(row(name, client, path, headers, scrapes), flush=True)
    finally:
        process.terminate()
        process.wait(30)


def row(name: str, client: httpx.Client, path: str, headers: dict[str, str], scrapes: int) -> str:
    """A line of the table."""
    taken, body, kind = [], b"", ""
    for _ in range(scrapes):
        time.sleep(_TICK_SECONDS)
        began = time.perf_counter()
        answer = client.get(path, headers={**headers, "Accept-Encoding": "identity"})
        taken.append(time.perf_counter() - began)
        body, kind = answer.content, answer.headers["content-type"].partition(";")[0]
    lines = [line for line in body.decode().splitlines() if line and not line.startswith("#")]
    families = len({re.split(r"[{ ]", line)[0] for line in lines})
    if "OpenMetrics" in name and not kind.endswith("openmetrics-text"):
        return f"| {name} | it answers with {kind} | | | | |"
    return (
        f"| {name} | {families} | {len(lines)} | {len(body):,} | {len(gzip.compress(body, 6)):,} "
        f"| {statistics.median(taken) * 1000:.1f} |"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpudiag", nargs="*", default=[])
    parser.add_argument("--scrapes", type=int, default=40)
    options = parser.parse_args()
    print(f"{_MACHINE}; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    for command in (*([one] for one in options.gpudiag), [sys.executable, "-m", "gpudiag"]):
        print(
            "\n"
            f"{' '.join(command)}\n"
            "\n"
            "| page | names | series | bytes | compressed | ms |\n"
            "| --- | --- | --- | --- | --- | --- |"
        )
        with machine(_MACHINE) as session, tempfile.TemporaryDirectory() as folder:
            measure(command, session, Path(folder), options.scrapes)


if __name__ == "__main__":
    main()
