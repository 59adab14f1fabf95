"""gpudiag itself, on simulated nodes, as prolog and epilog of a real Slurm: whose job runs, and who is
drained.

`python -m benchmarks.slurm_gate` tries all faults; these are some of each kind.
"""

import os
import time

import pytest

from gpudiag.errors import UsageError
from gpudiag.simulate.nvml.library import build_library
from tests.contract.gated_cluster import FAULTS, NEAR_MISSES, NO_ANSWER, become, gated_cluster
from tests.slurm_cluster import missing_programs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
CODES = {
    "h100x8+hang:3": "gpu.hung",
    "h100x8+gone:3": "gpu.count",
    "h100x8+version-mismatch": "nvml.version_mismatch",
}
SECONDS = 60  # this machine may be busy


@pytest.fixture(scope="module")
def gated():
    """One node with prolog and epilog; each test says which machine it is."""
    lacking = [*missing_programs(), *([] if os.geteuid() == 0 else ["root"])]
    if lacking:
        words = f"a real Slurm needs {', '.join(lacking)}: see tools/install-system-packages"
        if os.environ.get("CI") == "true":
            pytest.fail(words)
        pytest.skip(words)
    try:
        build_library()
    except UsageError as error:
        pytest.skip(f"simulated nodes need a C compiler: {error.message}")
    with gated_cluster() as running:
        yield running


def test_a_job_runs_on_a_node_in_order_and_its_report_is_kept(gated):
    tried = gated.try_node("in order", "h100x8", SECONDS)
    assert (tried.ran, tried.drained) == (True, False), tried
    assert list((gated.folder / "reports").glob("*.prolog.json"))


@pytest.mark.sliced
def test_a_jobs_own_mistake_drains_no_node(gated):
    tried = gated.try_node("its own", "h100x8+visible:9", SECONDS)
    assert (tried.ran, tried.drained) == (True, False), tried


@pytest.mark.sliced
@pytest.mark.parametrize("machine", [*CODES, "absent", "crash"])
def test_a_node_with_a_fault_or_without_a_verdict_is_drained_with_the_reason(gated, machine):
    tried = gated.try_node(machine, machine, SECONDS)
    assert (tried.ran, tried.drained) == (False, True), tried
    assert tried.reason.startswith("gpudiag ")
    assert CODES.get(machine, "exit status") in tried.reason
    assert len(tried.reason) < 200
    gated.resume()


@pytest.mark.sliced
def test_a_gpu_that_falls_off_the_bus_under_a_job_drains_the_node_after_it(gated):
    become(gated.folder, "h100x8", SECONDS)
    broken = f"printf 'NODE=h100x8+lost:5\\nGPUDIAG_SECONDS={SECONDS}\\n' > {gated.folder}/node"
    done = gated.cluster.run("srun", "--immediate=60", "--gres=gpu:1", "sh", "-c", broken)
    assert done.returncode == 0, done.stderr
    gated.cluster.wait_for(lambda state: "DRAIN" in state, 120)
    assert "gpu.lost: GPU 5" in gated.cluster.state()[1].replace("SIMULATED h100x8+lost:5: ", "")
    time.sleep(0.5)  # for the epilog to be over
    gated.resume()


def test_the_benchmark_tries_more_than_ten_faults():
    assert len(FAULTS) >= 10
    assert len(NO_ANSWER) >= 5
    assert set(CODES) <= set(FAULTS.values())
    assert len(NEAR_MISSES) >= 5
