"""The watch over all jobs of a machine, on a real torchrun job that hangs and that nobody started with
gpudiag.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpudiag.checks.job.stall_rule import StallRule
from gpudiag.runs import node_watch
from gpudiag.runs.node_watch import NodeWatch

# Sliced with those of `run` and `hang`: three views of one judge on jobs that hang; `run`'s is tried at each commit.
pytestmark = [pytest.mark.ranks, pytest.mark.sliced, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]


@pytest.fixture
def hung_job(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Rank 1 sleeps at its third step, and rank 0 waits for it."""
    variables = {"KIND": "sleeps:1", "AT_STEP": "3", "WORK": "0.01", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    script = ROOT / "benchmarks" / "run_jobs" / "train.py"
    with (tmp_path / "log").open("wb") as log:
        started = subprocess.Popen(
            [*command, str(script)], env={**os.environ, **variables}, stdout=log, stderr=log
        )
    try:
        yield started
    finally:
        started.terminate()
        started.wait(timeout=60)


def test_a_job_that_hangs_is_told_with_rank_and_line_until_it_ends(
    hung_job: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    read_node_jobs = node_watch.read_node_jobs

    def read_own(child: Any) -> Any:  # jobs of other tests are theirs
        found = read_node_jobs(child)
        return found and replace(found, jobs=tuple(one for one in found.jobs if one.pid == hung_job.pid))

    monkeypatch.setattr(node_watch, "read_node_jobs", read_own)
    monkeypatch.setattr(node_watch, "LIST_SECONDS", 2.0)
    commands, end = os.pipe()
    told: list[dict[str, Any]] = []

    def tell(message: dict[str, Any]) -> None:
        if message["kind"] != "jobs":
            told.append(message)
        if message["kind"] == "stall":
            hung_job.terminate()  # torchrun ends its ranks
        if message["kind"] == "over":
            os.close(end)

    watch = NodeWatch(tell, StallRule(seconds=5.0))
    try:
        watch.run(commands)
    finally:
        watch.close()
        os.close(commands)
    stall, over = told
    assert stall["finding"]["code"] == "hang.sleep"
    assert stall["finding"]["subject"]["rank"] == 1
    assert "in load_batch" in stall["finding"]["message"]
    assert (stall["name"].split(":")[-1].strip(), stall["ranks"]) == ("train.py", 2)
    assert over["key"] == stall["key"]  # on a busy machine the ranks wake up long before they end
