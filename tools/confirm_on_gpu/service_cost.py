"""What `gpudiag serve` costs for half a minute: JSON lines for the time with a client, and without.

    python -m tools.confirm_on_gpu.service_cost [SECONDS]

Processor time and memory (PSS) are those of the service and of its sampler; `states` are what the sampler
reported of itself.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import urllib.request
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any

SECONDS = 30.0
_START_SECONDS = 60.0
_FORGOTTEN_SECONDS = 20.0  # after the last request the sampler slows down (gpudiag/service/watch.py)
_ADDRESS = re.compile(r"http://[\d.]+:\d+")


def main() -> int:
    """Serve, look once a second, then let it alone, and print; 1 where it does not start."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS
    with tempfile.TemporaryFile("w+") as output:
        command = [sys.executable, "-m", "gpudiag", "serve", "--port", "0"]
        service = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        try:
            address = _await_address(service, output)
            if address is None:
                output.seek(0)
                print(output.read().strip()[-500:], file=sys.stderr)
                return 1
            _measure(service.pid, address, "looked at", seconds / 2)
            sleep(_FORGOTTEN_SECONDS if seconds >= SECONDS else 0.0)
            _measure(service.pid, None, "alone", seconds / 2)
        finally:
            service.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                service.wait(10)
            service.kill()
            service.wait()
    return 0


def _await_address(service: subprocess.Popen[bytes], output: Any) -> str | None:
    until = monotonic() + _START_SECONDS
    while monotonic() < until and service.poll() is None:
        output.seek(0)
        found = _ADDRESS.search(output.read())
        if found is not None:
            with suppress(OSError, ValueError):
                if _live(found[0])["devices"]:
                    return found[0]
        sleep(0.2)
    return None


def _measure(pid: int, address: str | None, when: str, seconds: float) -> None:
    processes = {"service": pid}
    sampler = _sampler_of(pid)
    if sampler is not None:
        processes["sampler"] = sampler
    before = {name: _processor_seconds(one) for name, one in processes.items()}
    began, states = monotonic(), set()
    while monotonic() - began < seconds:
        if address is not None:
            with suppress(OSError, ValueError):
                states.add(_live(address)["sampler"]["state"])
        sleep(1.0)
    lasted = monotonic() - began
    shares = {name: (_processor_seconds(one) - before[name]) / lasted for name, one in processes.items()}
    memory = {name: _pss_bytes(one) for name, one in processes.items()}
    row = {"when": when, "seconds": lasted, "processor_shares": shares, "pss_bytes": memory}
    print(json.dumps(row | {"states": sorted(states)}), flush=True)


def _live(address: str) -> Any:
    # The address is of our own service.
    with urllib.request.urlopen(f"{address}/api/v1/devices", timeout=5) as answer:  # noqa: S310
        return json.load(answer)


def _sampler_of(pid: int) -> int | None:
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in path.read_text().split():
            with suppress(OSError):
                if b"sampler.child" in Path(f"/proc/{child}/cmdline").read_bytes():
                    return int(child)
    return None


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _pss_bytes(pid: int) -> int | None:
    with suppress(OSError):
        found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
        return None if found is None else int(found[1]) * 1024
    return None


if __name__ == "__main__":
    sys.exit(main())
