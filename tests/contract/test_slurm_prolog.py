"""The shipped prolog under a real Slurm: who is drained, with which reason, and whose job runs."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from tests.slurm_cluster import missing_programs, slurm_cluster

PROLOG = Path(__file__).parents[2] / "docs" / "ci" / "slurm" / "prolog.sh"
REASON = "gpudiag FAIL gpu.lost: GPU 5 (5d:00.0) is off the bus: GPU is lost"

pytestmark = [
    pytest.mark.skipif(bool(missing_programs()), reason=f"not installed: {', '.join(missing_programs())}"),
    pytest.mark.skipif(os.geteuid() != 0, reason="slurmd needs root"),
]


@pytest.fixture
def folder():
    """A short path: a UNIX socket's may have 107 characters."""
    path = Path(tempfile.mkdtemp(prefix="gd"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def cluster(folder):
    answer = folder / "answer"
    answer.write_text("exit 0\n")
    gpudiag = folder / "gpudiag"
    gpudiag.write_text(f'#!/bin/sh\necho "{REASON}"\n. {answer}\n')
    # slurmd gives a prolog next to no environment, so the place of gpudiag is set here.
    prolog = folder / "prolog"
    (folder / "policy").write_text("")
    prolog.write_text(
        f"#!/bin/sh\n. {folder}/policy\nGPUDIAG={gpudiag} GPUDIAG_REPORTS=/nonexistent exec {PROLOG}\n"
    )
    for path in (gpudiag, prolog):
        path.chmod(0o755)
    with slurm_cluster(folder, prolog) as running:
        running.answer = answer
        yield running


def run_job(cluster):
    return cluster.run("srun", "--immediate=20", "--nodes=1", "echo", "the job ran")


@pytest.mark.parametrize(("policy", "statuses"), [("", (0,)), ("GPUDIAG_UNSURE=run", (0, 70, 3))])
def test_a_healthy_node_runs_the_job_and_one_without_a_verdict_where_the_site_says_so(
    cluster, policy, statuses
):
    (cluster.folder / "policy").write_text(f"export {policy}\n" if policy else "")
    for status in statuses:
        cluster.answer.write_text(f"exit {status}\n")
        done = run_job(cluster)
        assert (done.returncode, done.stdout) == (0, "the job ran\n"), done.stderr
        cluster.wait_for(lambda state: state == "IDLE")


@pytest.mark.parametrize("status", [1, 3])
def test_the_node_is_drained_with_the_reason_and_the_job_kept_away(cluster, status):
    cluster.answer.write_text(f"exit {status}\n")
    submitted = cluster.run(
        "sbatch", "--parsable", "--output=/dev/null", "--wrap", f"touch {cluster.folder}/ran"
    )
    assert submitted.returncode == 0, submitted.stderr
    job = submitted.stdout.strip()
    # Slurm puts the job back first, and then drains the node itself, should the prolog not have done so.
    cluster.wait_for(lambda state: "DRAIN" in state and cluster.job_state(job) == "PENDING")
    assert cluster.state()[1] == REASON
    assert not (cluster.folder / "ran").exists()
    cluster.run("scancel", job)
