"""Every fault at every stage on 4 gloo ranks, by every launcher: the right rank, stage and kind, in time, nothing left."""

import json
from typing import Any

import pytest

from benchmarks.launchers import command_of
from gpudiag.model.codec import encode
from gpudiag.ranks.agents.launch import TORCH
from gpudiag.ranks.run import message_of_run
from gpudiag.ranks.stages import STAGES
from tests.ranks.launching import LIMIT_SECONDS, Launches

pytestmark = [pytest.mark.ranks, pytest.mark.slow]

WORLD_SIZE = 4
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


# Each process of a launcher imports torch by itself: of the others than torchrun, the stages before and within the
# collectives. `python -m benchmarks.fault_matrix --launcher srun --launcher mpirun` tries all.
LAUNCHED = [("torchrun", *cell) for cell in CELLS]
LAUNCHED += [
    (launcher, *cell)
    for launcher in ("srun", "mpirun")
    for cell in CELLS
    if cell[1] in ("init", "measure") and cell[2] in ("", ":op")
]


@pytest.mark.parametrize(("launched_by", "fault", "stage", "detail"), LAUNCHED, indirect=["launched_by"])
def test_launched_ranks(launches: Launches, launched_by: str, fault: str, stage: str, detail: str) -> None:
    rank = CELLS.index((fault, stage, detail)) % WORLD_SIZE
    program = launches.start_program(
        "all_reduces",
        faults=[f"{fault}:{rank}@{stage}{detail}"],
        command=command_of(launched_by, WORLD_SIZE),
        preload=list(TORCH),
    )
    output, error = program.communicate(timeout=LIMIT_SECONDS)
    reports = [json.loads(line) for line in output.splitlines() if '"run"' in line]
    assert len(reports) == 1, error
    check(reports[0]["run"], fault, stage, rank)
    assert (program.returncode, reports[0]["run"]["launcher"]) == (1, launched_by)
    launches.wait_until_gone()
