"""Under the real torchrun: one report, and torchrun does not cut it short."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.ranks.launching import LIMIT_SECONDS, PROGRAM, Launches, wait_for

pytestmark = [pytest.mark.ranks, pytest.mark.sliced]

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
TORCH = ["torch", "torch.distributed"]


def is_agent(pid: int) -> bool:
    """Whether that process is one of the programs that torchrun started."""
    arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return str(PROGRAM).encode() in arguments and b"torch.distributed.run" not in arguments


def name_of(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text()


def rank_of(pid: int) -> int:
    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return int(next(text for text in variables if text.startswith(b"RANK="))[5:])


def run_under_torchrun(launches: Launches, entry: str, **options: Any) -> tuple[int, list[dict[str, Any]]]:
    """torchrun's exit status, and what the programs printed."""
    program = launches.start_program(entry, command=TORCHRUN, preload=TORCH, **options)
    output, _ = program.communicate(timeout=LIMIT_SECONDS)
    return program.returncode, [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def test_one_run_and_one_report(launches: Launches) -> None:
    status, reports = run_under_torchrun(launches, "all_reduces")
    assert status == 0
    assert [report["reporter"] for report in reports] == [0]
    run = reports[0]["run"]
    assert run["launcher"] == "torchrun"
    assert run["incidents"] == []
    assert [result["payload"] for result in run["returned"]] == [{"sum": 3.0}] * 2


@pytest.mark.parametrize("fault", ["kill:0@rendezvous", "stop:1@2"])
def test_a_fault_is_reported_once(launches: Launches, fault: str) -> None:
    status, reports = run_under_torchrun(launches, "all_reduces", faults=[fault], report_seconds=0.5)
    assert status == 1
    assert len(reports) == 1
    (incident,) = reports[0]["run"]["incidents"]
    assert incident["kind"] == ("died" if "kill" in fault else "stopped")
    assert incident["rank"] == int(fault[5])
    launches.wait_until_gone()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_end_of_torchrun_ends_everything(launches: Launches, number: signal.Signals) -> None:
    with launches.start_program("wait", command=TORCHRUN) as torchrun:
        wait_for(lambda: torchrun.stdout is not None and torchrun.stdout.readline(), "a rank")
        torchrun.send_signal(number)
        output, _ = torchrun.communicate(timeout=LIMIT_SECONDS)
    assert '"run"' not in output
    launches.wait_until_gone()


@pytest.mark.parametrize(("whom", "victim"), [("agent", 0), ("template", 1)])
def test_what_is_killed_during_the_import_is_named(launches: Launches, victim: int, whom: str) -> None:
    def find() -> int | None:
        found = templates() if whom == "template" else [pid for pid in launches.processes() if is_agent(pid)]
        return next((pid for pid in found if rank_of(pid) == victim), None)

    def templates() -> list[int]:
        return [pid for pid in launches.processes() if name_of(pid) == "gpudiag-templat\n"]

    with launches.start_program("wait", command=TORCHRUN, preload=["tests.ranks.slow_import"]) as torchrun:
        wait_for(lambda: len(templates()) == 2, "both imports")
        os.kill(wait_for(find, "the process"), signal.SIGKILL)
        output, _ = torchrun.communicate(timeout=LIMIT_SECONDS)
    reports = [json.loads(line) for line in output.splitlines() if '"run"' in line]
    incidents = [(incident["kind"], incident["rank"]) for incident in reports[0]["run"]["incidents"]]
    assert incidents == [("died", victim)]
    assert reports[0]["run"]["incidents"][0]["stage"] == "import"
    launches.wait_until_gone()


def test_a_killed_agent_is_reported_before_torchrun_ends_the_other(launches: Launches) -> None:
    with launches.start_program("wait", command=TORCHRUN) as torchrun:
        assert torchrun.stdout is not None
        for _ in range(2):
            torchrun.stdout.readline()
        agents = [pid for pid in launches.processes() if is_agent(pid)]
        leader = min(agents, key=rank_of)
        os.kill(leader, signal.SIGKILL)
        output, _ = torchrun.communicate(timeout=LIMIT_SECONDS)
    reports = [json.loads(line) for line in output.splitlines() if '"run"' in line]
    assert [report["reporter"] for report in reports] == [1]
    assert [(incident["kind"], incident["rank"]) for incident in reports[0]["run"]["incidents"]] == [
        ("died", 0)
    ]
