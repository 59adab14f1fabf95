"""Each machine's copy of a report: of which runs, under which name, and how many."""

from pathlib import Path

import pytest

from gpudiag.errors import GpudiagError
from gpudiag.model.documents import loads
from gpudiag.model.finding import Outcome
from gpudiag.model.report import CollectiveReport
from gpudiag.ranks.environment import RankEnvironment, read_environment
from gpudiag.runs.machines import keep_own_report
from tests.unit.collectives.measurements import make_measurement

REPORT = CollectiveReport(Outcome.PASS, make_measurement(), ())


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPUDIAG_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


def place(port: int = 29500, rank: int = 1, local_rank: int = 0) -> RankEnvironment:
    variables = {
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "198.51.100.7",
        "MASTER_PORT": str(port),
    }
    found = read_environment(variables)
    assert found is not None
    return found


def test_the_first_process_of_a_machine_keeps_the_report_as_it_is(state: Path) -> None:
    path = keep_own_report(REPORT, place(rank=2))
    assert path is not None
    assert path.parent == state / "reports"
    assert path.name.startswith("collective-")
    assert path.name.endswith("-rank2.json")
    assert loads(path.read_text()) == REPORT


def test_other_processes_of_the_machine_and_runs_on_one_machine_keep_none(state: Path) -> None:
    assert keep_own_report(REPORT, place(rank=3, local_rank=1)) is None
    assert keep_own_report(REPORT, None) is None
    assert not state.exists()


def test_the_oldest_go(state: Path) -> None:
    for port in range(29500, 29570):
        keep_own_report(REPORT, place(port))
    assert len(list(state.glob("reports/*.json"))) == 64


def test_a_folder_that_cannot_be_made_is_told(state: Path) -> None:
    state.write_text("a file")
    with pytest.raises(GpudiagError, match=r"cannot write to .*reports"):
        keep_own_report(REPORT, place())
