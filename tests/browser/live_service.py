"""`gpudiag serve` as a person starts it, on a simulated machine that a test can change meanwhile."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpudiag.simulate.loader import load_scenario
from gpudiag.simulate.scenario import Scenario
from gpudiag.simulate.session import Session
from tests.cli.simulated import simulated_machine

_ADDRESS = re.compile(r"(https?://\S+/)#token=(\S+)")
_START_LIMIT_LINES = 20
_STOP_LIMIT_SECONDS = 20


@dataclass(frozen=True, slots=True)
class LiveService:
    """A service that runs: where, its token for actions, its machine, and its process."""

    address: str
    token: str
    session: Session
    process: subprocess.Popen[str]
    environment: dict[str, str]  # of what belongs to the same machine and state

    def change_machine(self, scenario: str) -> None:
        """Let the machine become that of another scenario, under the running service."""
        self.session.update(load_scenario(scenario))

    def stop(self) -> None:
        """Ask it to end, and wait."""
        self.process.terminate()
        self.process.wait(_STOP_LIMIT_SECONDS)


@contextmanager
def live_service(scenario: str | Scenario, state: Path, *flags: str) -> Iterator[LiveService]:
    """The service of that machine; ended at the end, and made sure of."""
    with simulated_machine(scenario) as session:
        environment = {**session.environment, "GPUDIAG_STATE_DIR": str(state)}
        command = [sys.executable, "-m", "gpudiag", "serve", "--port", "0", "--allow-actions", *flags]
        log = state / "serve.log"
        with (
            log.open("w") as written,
            subprocess.Popen(
                command, env=environment, stdout=subprocess.DEVNULL, stderr=written, text=True
            ) as process,
        ):
            try:
                address, token = _read_address(log, process)
                yield LiveService(address, token, session, process, environment)
            finally:
                process.terminate()
                try:
                    process.wait(_STOP_LIMIT_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
                    raise


def _read_address(log: Path, process: subprocess.Popen[str]) -> tuple[str, str]:
    for _ in range(_START_LIMIT_LINES * 10):
        found = _ADDRESS.search(log.read_text())
        if found:
            return found[1], found[2]
        try:
            process.wait(0.1)
        except subprocess.TimeoutExpired:
            continue
        break
    raise AssertionError(f"the service did not start: {log.read_text()}")
