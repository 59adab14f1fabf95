"""Agents on several machines, which meet by TCP: here each has its own runtime directory instead."""

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpudiag.ranks.agents.run_directory import remove_stale_directories
from tests.ranks.grouping import Group
from tests.ranks.launching import Launches

pytestmark = pytest.mark.ranks  # they tell silence from slowness: run one at a time

# Each program on a machine of its own, as far as it can tell.
APART = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}


@pytest.fixture
def machines(launches: Launches, tmp_path: Path) -> Iterator[tuple[Group, dict[str, str]]]:
    """A launch, and the environment that keeps its programs apart."""
    for rank in range(3):
        (tmp_path / f"machine{rank}").mkdir()
    group = Group(launches)
    yield group, {**APART, "XDG_RUNTIME_DIR": str(tmp_path / "machine{rank}")}
    group.kill()
    for base in tmp_path.glob("machine*/gpudiag"):
        remove_stale_directories(base)
        assert not list(base.iterdir())


Machines = tuple[Group, dict[str, str]]


def test_agents_agree_across_machines(machines: Machines) -> None:
    group, apart = machines
    outcome = group.start("rounds", more=apart).end()
    assert outcome.statuses == [0, 0, 0]
    assert [report["reporter"] for report in outcome.reports] == [0]
    assert len(outcome.reports[0]["run"]["returned"]) == 3


@pytest.mark.sliced
@pytest.mark.parametrize("fault", ["kill:2@measure", "stop:1@warmup", "kill:0@verify"])
def test_a_fault_on_another_machine_is_reported_once(machines: Machines, fault: str) -> None:
    group, apart = machines
    outcome = group.start("rounds", faults=[fault], more=apart).end()
    assert outcome.statuses == [1, 1, 1]
    assert [report["reporter"] for report in outcome.reports] == [0]
    assert outcome.incidents == [("died" if "kill" in fault else "stopped", int(fault[5]))]


def test_a_lost_leader_is_replaced_by_one_on_another_machine(machines: Machines) -> None:
    group, apart = machines
    group.start("wait", more=apart).wait_for_ranks()
    group.programs[0].kill()
    outcome = group.end()
    assert outcome.statuses == [-signal.SIGKILL, 1, 1]
    assert [report["reporter"] for report in outcome.reports] == [1]
    assert outcome.incidents == [("died", 0)]


def test_a_rank_started_twice_on_two_machines_is_refused(machines: Machines, tmp_path: Path) -> None:
    group, apart = machines
    group.start("wait", more=apart).wait_for_ranks()
    (tmp_path / "machine9").mkdir()
    elsewhere = {**apart, "XDG_RUNTIME_DIR": str(tmp_path / "machine9")}
    twin = Group(group.launches).start("wait", ranks=(2,), more=elsewhere)
    (error,) = twin.end().errors
    assert error.startswith("rank 2 was started twice in this run, on ")
    for program in group.programs:
        program.terminate()
    assert group.end().reports == []


def test_a_late_rank_whose_clock_is_hours_ahead_is_named(machines: Machines) -> None:
    ahead = ("unshare", "--time", "--monotonic", "5000", "--fork")
    if shutil.which("unshare") is None or subprocess.run([*ahead, "true"], check=False).returncode != 0:
        pytest.skip("needs the right to make a time namespace")
    group, apart = machines
    group.start("timed", ranks=(0, 1), faults=["slow:2:40"], more=apart)
    group.start("timed", ranks=(2,), faults=["slow:2:40"], more=apart, command=(*ahead, sys.executable))
    outcome = group.end()
    assert outcome.incidents == [("late", 2)]
    (incident,) = outcome.reports[0]["run"]["incidents"]
    evidence = {fact["name"]: fact["value"] for fact in incident["evidence"]}
    assert 0 < evidence["clock_error"] < 0.1
    assert 0 < evidence["late_by"] < 1
    (injected,) = outcome.reports[0]["run"]["injected"]
    assert abs(injected["at_seconds"]) < 60  # not hours; below zero where rank 2 was up before the leader


def test_a_late_rank_on_another_machine_is_named(machines: Machines) -> None:
    group, apart = machines
    outcome = group.start("timed", faults=["slow:2:40"], more=apart).end()
    assert outcome.incidents == [("late", 2)]
