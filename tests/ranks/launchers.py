"""The real launchers that start a process for each rank on this machine, ready where they are installed."""

import shutil
from collections.abc import Iterator

import pytest

from tests.slurm_cluster import Cluster, missing_programs, slurm_cluster


def missing(launcher: str) -> str:
    """The programs that this launcher needs and that are not installed, in words; empty if it can run."""
    if launcher == "srun":
        return ", ".join(missing_programs())
    program = {"mpirun": "mpirun.openmpi", "mpiexec": "mpiexec.hydra"}.get(launcher)
    return program if program is not None and shutil.which(program) is None else ""


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of four nodes, all of them this machine."""
    with slurm_cluster(tmp_path_factory.mktemp("slurm", numbered=True), nodes=4) as cluster:
        yield cluster


@pytest.fixture
def launched_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The launcher of that name (an indirect parameter), ready to start.

    Skipped with the reason where it is not.
    """
    launcher: str = request.param
    if reason := missing(launcher):
        pytest.skip(f"not installed: {reason} (tools/install-system-packages)")
    if launcher == "srun":
        cluster: Cluster = request.getfixturevalue("slurm")
        for name in ("PATH", "SLURM_CONF"):
            monkeypatch.setenv(name, cluster.environment[name])
    return launcher
