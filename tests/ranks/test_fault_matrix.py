"""Every fault at every stage on gloo ranks, and a slice of that by launchers: the right rank, stage and kind,
nothing left.

`python -m benchmarks.fault_matrix` tries every fault at every stage by every launcher, twenty times
(docs/detection.md).
"""

import json
from typing import Any

import pytest

from benchmarks.launchers import command_of
from gpudiag.model.codec import encode
from gpudiag.ranks.agents.launch import TORCH
from gpudiag.ranks.stages import STAGES
from tests.ranks.launching import LIMIT_SECONDS, Launches

pytestmark = [pytest.mark.ranks, pytest.mark.sliced, pytest.mark.slow]

WORLD_SIZE = 4
# What each fault is found to be.
KINDS = {"kill": "died", "stop": "stopped", "skip": "silent", "oom": "raised", "mismatch": "mismatched"}

CELLS = [(fault, stage, "") for fault in ("kill", "stop", "skip", "oom") for stage in STAGES]
CELLS += [
    ("mismatch", stage, f":{what}")
    for stage, what in (("init", "op"), ("warmup", "size"), ("measure", "dtype"), ("verify", "op"))
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
    check(encode(run), fault, stage, rank)
    assert launches.processes() == []


# Each process of a launcher imports torch by itself: once each stage and each fault, and what the others than
# torchrun do when a rank dies, and when none does.
BY_TORCHRUN = [
    ("kill", "import", ""),
    ("oom", "rendezvous", ""),
    ("skip", "init", ""),
    ("stop", "warmup", ""),
    ("mismatch", "measure", ":size"),
    ("kill", "verify", ""),
    ("skip", "teardown", ""),
]
BY_OTHERS = [("kill", "measure", ""), ("mismatch", "init", ":op")]
LAUNCHED = [("torchrun", *cell) for cell in BY_TORCHRUN]
LAUNCHED += [(launcher, *cell) for launcher in ("srun", "mpirun") for cell in BY_OTHERS]
LAUNCHED_RANKS = 3


@pytest.mark.parametrize(("launched_by", "fault", "stage", "detail"), LAUNCHED, indirect=["launched_by"])
def test_launched_ranks(launches: Launches, launched_by: str, fault: str, stage: str, detail: str) -> None:
    rank = LAUNCHED.index((launched_by, fault, stage, detail)) % LAUNCHED_RANKS
    program = launches.start_program(
        "all_reduces",
        faults=[f"{fault}:{rank}@{stage}{detail}"],
        command=command_of(launched_by, LAUNCHED_RANKS),
        preload=list(TORCH),
    )
    output, error = program.communicate(timeout=LIMIT_SECONDS)
    reports = [json.loads(line) for line in output.splitlines() if '"run"' in line]
    assert len(reports) == 1, error
    check(reports[0]["run"], fault, stage, rank)
    assert (program.returncode, reports[0]["run"]["launcher"]) == (1, launched_by)
    launches.wait_until_gone()
