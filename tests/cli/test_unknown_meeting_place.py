"""Started on several machines with nobody saying where rank 0's is, no command tests by itself: one sentence,
exit 2.
"""

import pytest

from gpudiag.cli import launch
from gpudiag.cli.main import main
from gpudiag.errors import ExitStatus

STARTED_BY = {
    "mpirun": {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "2"},
    "srun": {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "2"},
}


@pytest.mark.parametrize("launcher", list(STARTED_BY))
@pytest.mark.parametrize("command", ["nccl-test", "preflight", "bandwidth", "train"])
def test_processes_that_cannot_find_each_other_are_refused(
    command: str, launcher: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in STARTED_BY[launcher].items():
        monkeypatch.setenv(name, value)
    # No leader of others is there to report it.
    monkeypatch.setattr(launch, "share_refusal", lambda *_: False)
    try:
        status = main([command])
    except SystemExit as end:
        status = end.code
    assert status == ExitStatus.USAGE
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(
        f"gpudiag: {launcher} started 4 processes on several machines, and no variable names"
    )
    assert "MASTER_ADDR" in said.err
