"""`nccl-test --localise`: eight ranks of one machine act as nodes, of which two, or what a pair exchanges,
are slow.
"""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.launchers import command_of
from tests.ranks.nccl_test_command import (
    GPUDIAG,
    Completed,
    nccl_test,
    run,
    started,
    torchrun,
)

pytestmark = [pytest.mark.ranks, pytest.mark.sliced, pytest.mark.timeout(240)]

FLAGS = ("--localise", "--max-bytes", "1K", "--iterations", "5", "--json")


def localised(completed: Completed) -> tuple[Any, list[tuple[str, str]]]:
    """What was found, and the findings of the network with their subjects; nothing is left running."""
    assert (completed.status, completed.left_behind) == (0, ()), completed
    document = completed.document()
    told = [
        (one["code"], " ".join(one["subject"].get("ends") or [f"rank {one['subject']['rank']}"]))
        for one in document["findings"]
        if one["code"].startswith("network.")
    ]
    return document["localisation"], told


def test_of_eight_ranks_the_slow_ones_are_named() -> None:
    found, told = localised(
        nccl_test("--nproc", "8", *FLAGS, "--inject", "slow:3:20", "--inject", "slow:6:30")
    )
    assert told == [("network.node_slow", "rank 3"), ("network.node_slow", "rank 6")]
    assert (len(found["nodes"]), found["links"]) == (8, 28)


def test_with_labels_all_pairs_of_few_ranks_meet_in_turns(tmp_path: Path) -> None:
    """What they show is judged in tests/unit/collectives/test_fabric.py: here speeds are the processor's."""
    labels = tmp_path / "labels"
    labels.write_text("rank[0-1] leaf=a\nrank[2-3] leaf=b\nrank[4-5] leaf=c\n")
    found, _ = localised(nccl_test("--nproc", "6", *FLAGS, "--labels", str(labels)))
    assert found["labels"] == f"{labels}: 6 of 6 nodes"
    assert found["links"] == 15
    assert [node["switches"] for node in found["nodes"]] == [["leaf a"]] * 2 + [["leaf b"]] * 2 + [
        ["leaf c"]
    ] * 2


def test_of_four_equal_ranks_none_is_named() -> None:
    found, told = localised(nccl_test("--nproc", "4", *FLAGS))
    assert told == []
    assert (len(found["nodes"]), found["links"]) == (4, 6)


def test_under_torchrun_the_agents_start_fresh_ranks_for_it() -> None:
    found, told = localised(torchrun(4, *FLAGS, "--inject", "slow:1:20"))
    assert told == [("network.node_slow", "rank 1")]
    assert found["links"] == 6


def test_two_ranks_are_too_few_and_the_report_says_so() -> None:
    completed = nccl_test("--nproc", "2", "--localise", "--max-bytes", "1K", "--iterations", "5")
    assert completed.status == 0
    assert "Localisation: not done: 4 nodes are needed" in " ".join(completed.output.split())


def test_after_a_death_nothing_is_localised_and_the_death_is_the_verdict() -> None:
    completed = nccl_test("--nproc", "4", *FLAGS, "--inject", "kill:1@2")
    document = completed.document()
    assert completed.status == 1
    assert [one["code"] for one in document["findings"]] == ["rank.died"]
    assert document["localisation"] is None
    assert "rank 1 (died)" in document["missing_detail"]["localisation"]


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGKILL])
def test_a_command_that_is_ended_while_it_localises_leaves_nothing(sign: signal.Signals) -> None:
    slow = [word for rank in range(4) for word in ("--inject", f"slow:{rank}:200")]
    with started(*GPUDIAG, "--nproc", "4", *FLAGS, *slow) as running:
        time.sleep(9.0)  # the sweep of eight sizes, five iterations each, takes its eight seconds
        assert running.process.poll() is None
        os.kill(running.process.pid, sign)
        completed = running.finish(limit_seconds=30)
    assert completed.status
    assert completed.left_behind == ()


def test_a_pair_needs_the_flag() -> None:
    completed = nccl_test("--nproc", "8", "--inject", "slow:2-5:20")
    assert (completed.status, completed.output) == (2, "")
    assert "--localise" in completed.error


@pytest.mark.parametrize("launched_by", ["srun"], indirect=True)
def test_under_a_launcher_all_processes_go_on_and_one_reports(launched_by: str) -> None:
    completed = run(*command_of(launched_by, 4), *GPUDIAG[1:], *FLAGS, "--inject", "slow:1-3:20")
    found, told = localised(completed)
    assert told == [("network.link_slow", "rank 1 rank 3")]
    assert found["links"] == 6
