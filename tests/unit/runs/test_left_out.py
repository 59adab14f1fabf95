"""Machines to do without, as each launcher is told."""

import pytest

from gpudiag.ranks.launchers import Launcher
from gpudiag.runs.machines import describe_leaving_out, launched_nodes, node_name

UNFIT, FIT = ("n07", "n09"), ("n01", "n02")


@pytest.mark.parametrize(
    ("launcher", "words"),
    [
        (Launcher.SRUN, "--exclude=n07,n09"),
        (Launcher.MPIRUN, "--host n01,n02"),
        (Launcher.HYDRA, "-hosts n01,n02"),
        (Launcher.TORCHRUN, None),
    ],
)
def test_the_flag_is_the_launcher_s_own(launcher: Launcher, words: str | None) -> None:
    assert describe_leaving_out(launcher, UNFIT, FIT) == words
    assert describe_leaving_out(launcher, (), FIT) is None


def test_kubernetes_is_given_an_affinity() -> None:
    words = describe_leaving_out(Launcher.INDEXED_JOB, UNFIT, FIT)
    assert words is not None
    assert '"operator": "NotIn", "values": ["n07", "n09"]' in words


def test_nodes_have_the_launcher_s_names() -> None:
    assert node_name({"SLURMD_NODENAME": "n07"}) == "n07"
    assert node_name({"NODE_NAME": "gpu-3"}) == "gpu-3"
    assert launched_nodes({"SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "n[01-03]"}) == ("n01", "n02", "n03")
    assert launched_nodes({"SLURM_STEP_NODELIST": "n[01-03]"}) == ()
