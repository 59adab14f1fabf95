"""A look at a job that hangs, as a run of the service: beside all other runs, at processes of jobs alone."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.test_runs import LONG, formats_answered, wait_for_end, wait_until_running

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(240)]

# A rank that knows nothing of gpudiag, and one line at which it stands.
SLEEPS = """
import time
def load_batch():
    print("there", flush=True)
    time.sleep(600)
load_batch()
"""


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[int]:
    """The pid of the only rank of a job."""
    script = tmp_path / "train.py"
    script.write_text(SLEEPS)
    place = {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
    }
    with subprocess.Popen(
        [sys.executable, str(script)], env={**os.environ, **place}, stdout=subprocess.PIPE
    ) as job:
        assert job.stdout is not None
        job.stdout.readline()
        yield job.pid
        job.kill()


@pytest.mark.sliced
def test_a_job_is_looked_at_by_a_process_of_it_while_another_run_goes_on(served, rank: int) -> None:
    other = served.start(kind="nccl-test", plan=LONG).json()
    wait_until_running(served, other["id"])
    started = served.start(kind="hang", plan={"job_of": rank})
    assert started.status_code == 201, started.text
    run = wait_for_end(served, started.json()["id"])
    assert (run["state"], run["lock"], run["gpus"]) == ("succeeded", ["look"], [])
    report = served.get(f"/api/v1/runs/{run['id']}/report").json()
    assert report["schema"] == "gpudiag.hang/1"
    assert [one["pid"] for one in report["jobs"][0]["job"]["ranks"]] == [rank]
    assert "train.py" in served.get(f"/api/v1/runs/{run['id']}/report?format=text").text
    assert formats_answered(served, run) == run["report_formats"] == ["text", "json"]
    served.client.post(f"/api/v1/runs/{other['id']}/cancel", headers=served.act)


def test_a_process_of_no_job_is_not_looked_at(served, rank: int) -> None:
    with subprocess.Popen(["sleep", "600"]) as other:
        run = wait_for_end(served, served.start(kind="hang", plan={"job_of": other.pid}).json()["id"])
        other.kill()
    assert (run["state"], run["report_formats"]) == ("failed", [])
    assert f"process {other.pid} belongs to no job that was found" in run["reason"]


@pytest.mark.parametrize(
    "plan",
    [
        {"pid": 1},
        {"job_of": "1; rm"},
        {"job_of": 0},
        {"job_of": 1 << 30},
        {"slurm_job": "/etc/passwd"},
        {"slurm_job": "--output"},
        {"native": True},
        {"every": True, "job_of": 5},
        {"limit": 0},
    ],
)
def test_what_is_no_plain_plan_is_refused(served, plan: dict[str, object]) -> None:
    assert served.start(kind="hang", plan=plan).status_code == 422


def test_the_kind_is_listed_with_its_plan_and_takes_no_gpu(served) -> None:
    kinds = {one["kind"]: one for one in served.get("/api/v1/runs").json()["kinds"]}
    assert kinds["hang"]["uses_gpus"] is False
    assert kinds["train"]["uses_gpus"] is True
    wanted = {"job_of", "slurm_job", "every", "limit", "deadline_seconds"}
    assert set(kinds["hang"]["plan_schema"]["properties"]) == wanted
