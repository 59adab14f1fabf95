"""Four machines with a rank each, where one machine or one link is bad: found by exchanges between pairs."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ranks.machines import Machine, filter_packets, four_machines, start_nccl_test

pytestmark = [pytest.mark.ranks, pytest.mark.sliced, pytest.mark.slow, pytest.mark.timeout(240)]

PORT = 29576
LIMIT_SECONDS = 120.0  # proves that nothing hangs


@pytest.fixture
def machines() -> Iterator[list[Machine]]:
    with four_machines() as found:
        yield found


def localise(machines: list[Machine], folder: Path) -> Any:
    """The document that rank 0 prints; all processes end with its exit status."""
    size = ["--min-bytes", "64K", "--max-bytes", "64K", "--iterations", "5"]
    flags = ["--backend", "gloo", *size, "--localise", "--json"]
    processes = [
        start_nccl_test(machine, rank, folder, PORT, flags, torchrun=False)
        for rank, machine in enumerate(machines)
    ]
    try:
        output = [process.communicate(timeout=LIMIT_SECONDS) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert len({process.returncode for process in processes}) == 1, output
    return json.loads(output[0][0])


def names(document: Any) -> list[tuple[str, Any]]:
    """Each finding's code and its host, or the ends of its link."""
    return [
        (one["code"], sorted(one["subject"].get("ends", [one["subject"]["host"]])))
        for one in document["findings"]
    ]


def test_a_sound_network_is_cleared(machines: list[Machine], tmp_path: Path) -> None:
    document = localise(machines, tmp_path)
    assert (document["outcome"], names(document)) == ("pass", [])
    found = document["localisation"]
    assert (found["links"], found["suspects"]) == (6, [])
    assert "load" not in {one["phase"] for one in found["exchanges"]}  # they would share processors


def test_a_slow_link_is_named_and_not_its_ends(machines: list[Machine], tmp_path: Path) -> None:
    """Both directions are held to 8 MB a second: what comes faster is dropped, as a policer does."""
    one, other = machines[1], machines[2]
    for receiver, sender in ((one, other), (other, one)):
        filter_packets(receiver, f"ip saddr {sender.address} limit rate over 8 mbytes/second drop")
    document = localise(machines, tmp_path)
    assert names(document) == [("network.link_slow", ["machine2", "machine3"])]


def test_a_lossy_link_is_named_with_its_tail(machines: list[Machine], tmp_path: Path) -> None:
    filter_packets(machines[3], f"ip saddr {machines[0].address} numgen random mod 50 == 0 drop")
    document = localise(machines, tmp_path)
    assert names(document) == [("network.link_lossy", ["machine1", "machine4"])]
    (finding,) = document["findings"]
    assert "machine1 and machine4 send each other is lost on the way" in finding["message"]
    assert 0.005 < next(fact["value"] for fact in finding["evidence"] if fact["name"] == "sent_again") < 0.06


def test_a_slow_host_is_named_and_none_of_its_links(machines: list[Machine], tmp_path: Path) -> None:
    filter_packets(machines[2], 'iifname "eth0" limit rate over 8 mbytes/second drop')
    document = localise(machines, tmp_path)
    assert names(document) == [("network.node_slow", ["machine3"])]
