"""Processes that meet at a file learn from cards beside it whether they are on one machine or on several."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from gpudiag.errors import LaunchError
from gpudiag.linux.namespaces import read_machine
from gpudiag.ranks.agents import file_meeting
from gpudiag.ranks.agents.file_meeting import place_by_file
from gpudiag.ranks.environment import RankEnvironment, read_environment


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_meeting, "_TOGETHER_SECONDS", 0.2)
    monkeypatch.setattr(file_meeting, "NOTICE_SECONDS", 0.0)
    monkeypatch.setattr(file_meeting, "_addresses", lambda _: ("10.0.0.2/24", "192.168.7.2/24"))


def process(folder: Path, rank: int, world_size: int = 2) -> RankEnvironment:
    environment = read_environment({}, rank=rank, world_size=world_size, init_method=f"file://{folder}/meet")
    assert environment is not None
    return environment


def put_card(folder: Path, rank: int, network: str, *addresses: str) -> None:
    cards = folder / "meet.gpudiag"
    cards.mkdir(exist_ok=True)
    card = {"rank": rank, "host": f"a{rank}", "network": network, "addresses": addresses}
    (cards / f"rank{rank}.json").write_text(json.dumps(card))


def test_processes_of_one_machine_stay_as_they_are(tmp_path: Path) -> None:
    put_card(tmp_path, 0, read_machine().network, "10.0.0.2/24")
    environment = process(tmp_path, 1)
    assert place_by_file(environment, 1.0) == environment


def test_of_another_machine_the_address_is_taken_that_is_in_a_network_of_this_one(tmp_path: Path) -> None:
    put_card(tmp_path, 0, "another", "172.17.0.1/16", "192.168.7.1/24")
    placed = place_by_file(process(tmp_path, 1), 1.0)
    assert placed is not None
    assert (placed.master, placed.on_one_machine) == ("192.168.7.1", False)
    assert (placed.local_rank, placed.local_world_size) == (0, 1)
    assert placed.init_method == f"file://{tmp_path}/meet"


def test_ranks_of_a_machine_are_counted_there(tmp_path: Path) -> None:
    put_card(tmp_path, 0, "another", "10.0.0.1/24")
    put_card(tmp_path, 1, "another", "10.0.0.1/24")
    put_card(tmp_path, 2, read_machine().network, "10.0.0.2/24")
    placed = place_by_file(process(tmp_path, 3, 4), 1.0)
    assert placed is not None
    assert (placed.local_rank, placed.local_world_size) == (1, 2)
    given = place_by_file(replace(process(tmp_path, 3, 4), local_rank=0), 1.0, variables={"LOCAL_RANK": "0"})
    assert given is not None
    assert given.local_rank == 0


def test_rank_0_waits_a_moment_and_then_expects_the_others_on_other_machines(tmp_path: Path) -> None:
    placed = place_by_file(process(tmp_path, 0), 1.0)
    assert placed is not None
    assert (placed.master, placed.on_one_machine, placed.local_rank) == ("10.0.0.2", False, 0)


def test_where_rank_0_does_not_come_that_is_said_with_the_file(tmp_path: Path) -> None:
    told: list[str] = []
    with pytest.raises(
        LaunchError, match=f"rank 0 has not come to {tmp_path}/meet, where rank 1 on .* waits"
    ):
        place_by_file(process(tmp_path, 1), 0.3, told.append)
    assert len(told) == 1


def test_any_other_place_is_left_alone_and_so_is_a_file_that_cannot_be_made(tmp_path: Path) -> None:
    assert place_by_file(None, 1.0) is None
    alone = process(tmp_path, 0, 1)
    assert place_by_file(alone, 1.0) is alone
    nowhere = process(tmp_path / "nothing", 0)
    assert place_by_file(nowhere, 1.0) is nowhere


def test_what_an_earlier_launch_left_behind_does_not_count(tmp_path: Path) -> None:
    put_card(tmp_path, 0, "another", "10.0.0.9/24")
    os.utime(tmp_path / "meet.gpudiag" / "rank0.json", (1e9, 1e9))
    with pytest.raises(LaunchError):
        place_by_file(process(tmp_path, 1), 0.1)
