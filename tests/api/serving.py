"""A service on a simulated machine, as a process of its own, for the tests of the API."""

import contextlib
import os
import re
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from gpudiag.linux.proc import is_alive
from gpudiag.simulate.loader import load_scenario
from gpudiag.simulate.session import Session, open_session
from tests.warm_start import IMPORT_PATH, start_cold, start_python

START_SECONDS = 90.0  # proves that it starts at all
END_SECONDS = 60.0  # and that it ends
# `gpudiag` with shorter pauses. Those between two children of the sampler stay longer than a child has to
# report: on a busy machine one would end the other.
PROGRAM = """
from gpudiag.sampler import pauses
pauses.PAUSES = pauses.Pauses(
    after_event=1.0, after_change=2.0, between_successors=4.0, lost=4.0, lost_later=8.0, failed=1.0, journal=2.0
)
from gpudiag.cli.main import run
run()
"""


class Served:
    """One running service: its address, its act token, its machine."""

    def __init__(self, process, session: Session, log: Path) -> None:
        self.process = process
        self.session = session
        self.log = log
        self.url, self.token = _wait_for_address(process, log)
        self.client = httpx.Client(base_url=self.url, timeout=20.0, verify=False)
        self.act = {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def get(self, path: str, **options) -> httpx.Response:
        return self.client.get(path, **options)

    def live(self) -> dict:
        return self.get("/api/v1/devices").raise_for_status().json()

    def change(self, spec: str) -> None:
        self.session.update(load_scenario(spec))

    def wait(self, reached, seconds: float = 60.0):
        """The first answer of `reached()` that is true, within that time."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            answer = reached()
            if answer:
                return answer
            time.sleep(0.1)
        raise AssertionError(f"not reached within {seconds} s; the log ends: {self.log.read_text()[-1500:]}")

    def wait_for_data(self) -> None:
        self.wait(lambda: self.get("/readyz").status_code == 200, START_SECONDS)

    def start(self, **request) -> httpx.Response:
        return self.client.post("/api/v1/runs", json=request, headers=self.act)

    def run(self, identity: str) -> dict:
        return self.get(f"/api/v1/runs/{identity}").json()

    def children(self) -> list[int]:
        """The processes that this service has started, and theirs."""
        return descendants(self.process.pid)


@contextlib.contextmanager
def machine(spec: str = "h100x8+busy:0") -> Iterator[Session]:
    with open_session(load_scenario(spec)) as session:
        yield session


@contextlib.contextmanager
def serving(
    session: Session,
    state: Path,
    *options: str,
    ends: bool = True,
    descriptors: int | None = None,
    as_shipped: bool = False,
) -> Iterator[Served]:
    """A service on that machine, with so many descriptors; at the end it is asked to stop, and must.

    `as_shipped`: started as a user starts it, with its own pauses; what is measured of it is true of no
    other.
    """
    log = state / f"serve-{time.monotonic_ns()}.log"
    state.mkdir(parents=True, exist_ok=True)
    environment = {**session.environment, "GPUDIAG_STATE_DIR": str(state), "PYTHONPATH": IMPORT_PATH}
    with log.open("wb") as output, open(os.devnull) as nothing:
        start = start_python if descriptors is None and not as_shipped else start_cold
        program = ("-m", "gpudiag") if as_shipped else ("-c", PROGRAM)
        words = (*program, "serve", "--port", "0", *options)
        process = start(words, environment, nothing.fileno(), output.fileno(), output.fileno())
    if descriptors is not None:  # before it asks how many it has: its modules take longer to load
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (descriptors, descriptors))
    try:
        served = Served(process, session, log)
        with served.client:
            yield served
        if ends and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            assert process.wait(END_SECONDS) == 0, log.read_text()[-2000:]
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(10)


def descendants(pid: int) -> list[int]:
    """The living processes below that one."""
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError, ValueError):
                stat = Path(f"/proc/{entry}/stat").read_text()
                parents[int(entry)] = int(stat[stat.rindex(")") + 2 :].split()[1])
    found, wanted = [], {pid}
    while True:
        more = {child for child, parent in parents.items() if parent in wanted} - set(found)
        if not more:
            return [child for child in found if is_alive(child)]
        found += more
        wanted = more


def _wait_for_address(process, log: Path) -> tuple[str, str]:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        found = re.search(r"gpudiag serve: (https?://\S+?)/(?:#token=(\S+))?$", log.read_text(), re.MULTILINE)
        if found:
            _wait_for_port(found[1], process, log)
            return found[1], found[2] or ""
        assert process.poll() is None, log.read_text()
        time.sleep(0.05)
    raise AssertionError(f"no address within {START_SECONDS} s: {log.read_text()}")


def _wait_for_port(url: str, process, log: Path) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        assert process.poll() is None, log.read_text()
        with contextlib.suppress(httpx.TransportError):
            httpx.get(f"{url}/healthz", timeout=2.0, verify=False)
            return
        time.sleep(0.05)
    raise AssertionError(f"nobody answers at {url}")
