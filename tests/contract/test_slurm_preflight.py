"""gpudiag itself, on simulated nodes, as the prolog of a real Slurm: it runs, drains, or stays out of the way."""

import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from gpudiag.errors import UsageError
from gpudiag.simulate.library import build_library
from tests.contract.slurm_cluster import missing_programs, slurm_cluster

ROOT = Path(__file__).parents[2]
PROLOG = ROOT / "docs" / "ci" / "slurm" / "prolog.sh"
# A gpudiag whose own code is broken: every look at the machine raises TypeError.
CRASH = "import gpudiag.runs.preflight as p; p.take_snapshot = None"
PROGRAM = """#!/bin/sh
export PYTHONPATH={root} GPUDIAG_STATE_DIR={folder}/state HOME={folder}
. {folder}/node
case $NODE in
crash) exec {python} -c "{crash}; import sys; from gpudiag.cli.main import main; sys.exit(main(sys.argv[1:]))" "$@" ;;
esac
exec {python} -m gpudiag simulate "$NODE" -- gpudiag "$@"
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture
def cluster():
    """One node whose prolog runs gpudiag; `node` says which machine it finds there."""
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
    folder = Path(tempfile.mkdtemp(prefix="gd"))  # short: a UNIX socket's path may have 107 characters
    try:
        program, prolog = folder / "gpudiag", folder / "prolog"
        program.write_text(PROGRAM.format(root=ROOT, folder=folder, python=sys.executable, crash=CRASH))
        prolog.write_text(
            f"#!/bin/sh\nGPUDIAG={program} GPUDIAG_REPORTS={folder}/reports GPUDIAG_SECONDS=40 exec {PROLOG}\n"
        )
        (folder / "reports").mkdir()
        for path in (program, prolog):
            path.chmod(0o755)
        with slurm_cluster(folder, prolog) as running:
            yield running
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def become(cluster, node):
    (cluster.folder / "node").write_text(f"NODE={node}\n")


@pytest.mark.parametrize("node", ["h100x8", "h100x8+hang:6", "crash"])
def test_a_job_runs_on_a_node_whose_hardware_is_not_at_fault(cluster, node):
    """Healthy; a hang, which is the host's; a gpudiag that crashes: none of them drains the node."""
    become(cluster, node)
    done = cluster.run("srun", "--immediate=60", "--nodes=1", "echo", "the job ran")
    assert (done.returncode, done.stdout) == (0, "the job ran\n"), done.stderr
    cluster.wait_for(lambda state: state == "IDLE")
    if node != "crash":
        assert list((cluster.folder / "reports").glob("*.json"))


def test_a_lost_gpu_drains_the_node_with_the_reason_that_gpudiag_gives(cluster):
    become(cluster, "h100x8+lost:5")
    submitted = cluster.run(
        "sbatch", "--parsable", "--output=/dev/null", "--wrap", f"touch {cluster.folder}/ran"
    )
    assert submitted.returncode == 0, submitted.stderr
    cluster.wait_for(lambda state: "DRAIN" in state)
    reason = cluster.state()[1]
    assert reason.startswith("gpudiag FAIL")
    assert "gpu.lost" in reason
    assert "GPU 5" in reason
    assert not (cluster.folder / "ran").exists()
    cluster.run("scancel", submitted.stdout.strip())
