"""Start runs as tests need them, and look for what they left behind."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpudiag.linux.proc import is_alive
from gpudiag.model.measure import Incident
from gpudiag.ranks.agents.launch import run_ranks
from gpudiag.ranks.inject import parse_fault
from gpudiag.ranks.rank_run import RankRun
from gpudiag.ranks.stages import Budgets

ROOT = Path(__file__).parents[2]
ENTRIES = "tests.ranks.rank_entries"
PROGRAM = ROOT / "tests" / "ranks" / "launch_program.py"

# Far more than any of these runs needs, also on a loaded machine: it only proves that nothing hung.
LIMIT_SECONDS = 90.0


def free_port() -> int:
    """A TCP port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


@dataclass
class Launches:
    """Runs of one test: their folder and port for meeting, and a mark in the environment of every process."""

    folder: Path
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    port: int = field(default_factory=free_port)  # tests that run at once must not meet each other

    def run(
        self,
        entry: str,
        world_size: int = 3,
        faults: Sequence[str] = (),
        budgets: Budgets | None = None,
        **options: Any,
    ) -> RankRun:
        """Run one of the entries of these tests, without torch unless `preload` says so."""
        options.setdefault("preload", ())
        return run_ranks(
            entry if ":" in entry else f"{ENTRIES}:{entry}",
            run_id="test",
            world_size=world_size,
            arguments={"folder": str(self.folder), **options.pop("arguments", {})},
            budgets=budgets,
            faults=[parse_fault(text, world_size) for text in faults],
            variables={"PYTHONPATH": str(ROOT), "GPUDIAG_TEST_MARK": self.mark},
            **options,
        )

    def start_program(
        self,
        entry: str,
        world_size: int = 3,
        faults: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
        command: Sequence[str] = (sys.executable,),
        **options: Any,
    ) -> "subprocess.Popen[str]":
        """Start the same in a process of its own, which prints its run as JSON."""
        plan = {
            "entry": f"{ENTRIES}:{entry}",
            "world_size": world_size,
            "faults": list(faults),
            "folder": str(self.folder),
            **options,
        }
        return subprocess.Popen(
            [*command, str(PROGRAM), json.dumps(plan)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "GPUDIAG_TEST_MARK": self.mark, **(variables or {})},
        )

    def processes(self) -> list[int]:
        """The processes of this test's runs that are still alive."""
        mark = f"GPUDIAG_TEST_MARK={self.mark}".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                marked = mark in path.read_bytes()
            except OSError:
                continue
            pid = int(path.parent.name)
            if marked and is_alive(pid):
                found.append(pid)
        return found

    def wait_until_gone(self) -> None:
        """Fail unless every process of this test's runs ends soon.

        One that begins another program at this moment has no environment, and so no mark: look twice.
        """
        wait_for(
            lambda: not (self.processes() or time.sleep(0.05) or self.processes()), "the end of every process"
        )

    def kill_all(self) -> None:
        """Leave nothing behind, whatever a test did."""
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    """What `condition` returns once it is true; fail when that takes too long."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited too long for {what}"
        time.sleep(0.02)
    return value


def facts(incident: Incident) -> dict[str, Any]:
    """An incident's evidence by name."""
    return {fact.name: fact.value for fact in incident.evidence}
