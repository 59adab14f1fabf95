from collections.abc import Iterator
from pathlib import Path

import pytest

from gpudiag.ranks.agents.run_directory import remove_stale_directories
from tests.ranks.launchers import launched_by, slurm
from tests.ranks.launching import Launches

__all__ = ["launched_by", "launches", "slurm"]


@pytest.fixture
def launches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Launches]:
    """Runs whose directories lie in a folder of the test; no process may be left, and no directory in use."""
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    folder = tmp_path / "meeting"
    folder.mkdir()
    launches = Launches(folder)
    yield launches
    left = launches.processes()
    launches.kill_all()
    assert not left
    base = runtime / "gpudiag"
    if base.exists():
        remove_stale_directories(base)  # those of agents that a test killed
        assert not list(base.iterdir())
