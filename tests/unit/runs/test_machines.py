"""Machines of a launch: what rank 0 makes of machines that do not answer, and which variables count."""

import pytest

from gpudiag.errors import ExitStatus
from gpudiag.model.finding import Outcome
from gpudiag.ranks.environment import read_launch
from gpudiag.runs.gate import worst_status
from gpudiag.runs.machines import Look, MachinesLaunch
from tests.unit.render.reports import HEALTHY

LAUNCHED = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "1"} | {
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}


def test_a_machine_that_sends_no_report_is_never_a_pass(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    environment = read_launch(LAUNCHED)
    assert environment is not None
    with MachinesLaunch(environment, Look("preflight", patience_seconds=0.2, verdict_seconds=1.0)) as launch:
        gathered = launch.gather(HEALTHY, ExitStatus.PASS)
    assert (gathered.merged.verdict, gathered.status) == (Outcome.ERROR, ExitStatus.ERROR)
    assert [machine.verdict for machine in gathered.merged.machines] == [Outcome.PASS, Outcome.ERROR]


@pytest.mark.parametrize(
    "change", [{"WORLD_SIZE": "1"}, {"MASTER_ADDR": ""}, {"RANK": "x"}], ids=["alone", "incomplete", "wrong"]
)
def test_other_variables_are_no_launch(change):
    assert read_launch({**LAUNCHED, **change}) is None


def test_a_failure_anywhere_is_one_of_all():
    assert worst_status([ExitStatus.PASS, ExitStatus.ERROR, ExitStatus.FAIL]) is ExitStatus.FAIL
    assert worst_status([ExitStatus.PASS, ExitStatus.ERROR]) is ExitStatus.ERROR
    assert worst_status([ExitStatus.PASS]) is ExitStatus.PASS
    assert worst_status([]) is ExitStatus.ERROR
