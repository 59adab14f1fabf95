"""Every fault at every stage on 4 gloo ranks: the right rank, the right stage, in time, nothing left."""

import json
import sys
from typing import Any

import pytest

from gpudiag.model.codec import encode
from gpudiag.ranks.agents.launch import TORCH
from gpudiag.ranks.run import message_of_run
from gpudiag.ranks.stages import STAGES
from tests.ranks.launching import LIMIT_SECONDS, Launches

pytestmark = [pytest.mark.ranks, pytest.mark.slow]

WORLD_SIZE = 4
TORCHRUN = (
    sys.executable,
    "-m",
    "torch.distributed.run",
    "--standalone",
    "--nproc-per-node",
    str(WORLD_SIZE),
)

# What each fault is found to be.
KINDS = {"kill": "died", "stop": "stopped", "skip": "silent", "oom": "raised", "mismatch": "mismatched"}

CELLS = [(fault, stage, "") for fault in ("kill", "stop", "skip", "oom") for stage in STAGES]
CELLS += [
    ("mismatch", stage, f":{what}")
    for stage in ("init", "warmup", "measure", "verify")
    for what in ("op", "size", "dtype")
]


def check(run: dict[str, Any], fault: str, stage: str, rank: int) -> None:
    """The run's only incident is that fault, on that rank, in that stage."""
    (incident,) = run["incidents"]
    evidence = {fact["name"]: fact["value"] for fact in incident["evidence"]}
    assert (incident["kind"], incident["rank"]) == (KINDS[fault], rank)
    if fault == "skip":
        assert evidence["not_reached"] == f"stage {stage}"
        assert "in stay_out" in evidence["stack"]
    else:
        assert incident["stage"] == stage
    if fault == "mismatch":
        assert evidence["operation"] != evidence["expected_operation"]
    (injected,) = run["injected"]
    assert injected["fired"]


@pytest.mark.parametrize(("fault", "stage", "detail"), CELLS)
def test_spawned_ranks(launches: Launches, fault: str, stage: str, detail: str) -> None:
    rank = CELLS.index((fault, stage, detail)) % WORLD_SIZE
    specification = f"{fault}:{rank}@{stage}{detail}"
    run = launches.run("all_reduces", world_size=WORLD_SIZE, faults=[specification], preload=list(TORCH))
    check(encode(message_of_run(run)), fault, stage, rank)
    assert launches.processes() == []


@pytest.mark.parametrize(("fault", "stage", "detail"), CELLS)
def test_ranks_under_torchrun(launches: Launches, fault: str, stage: str, detail: str) -> None:
    rank = CELLS.index((fault, stage, detail)) % WORLD_SIZE
    specification = f"{fault}:{rank}@{stage}{detail}"
    program = launches.start_program(
        "all_reduces", faults=[specification], command=TORCHRUN, preload=list(TORCH)
    )
    output, _ = program.communicate(timeout=LIMIT_SECONDS)
    (report,) = [json.loads(line) for line in output.splitlines() if '"run"' in line]
    check(report["run"], fault, stage, rank)
    assert program.returncode == 1
    launches.wait_until_gone()
