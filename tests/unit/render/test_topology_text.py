"""`gpudiag topo` as text: within 80 columns on every machine, and what it shows of each."""

from dataclasses import replace
from datetime import datetime

import pytest

from gpudiag.checks.links.topology import build_topology
from gpudiag.checks.on_topology import TOPOLOGY_CHECKS, add_verdict
from gpudiag.checks.runner import run_checks
from gpudiag.compat import UTC
from gpudiag.model.context import Context
from gpudiag.model.topology import MeasuredLink, TopologyNic
from gpudiag.render.style import Style
from gpudiag.render.topology_text import render_topology
from tests.topologies import build_snapshot, read_machines
from tests.walking import walk

MACHINES = {machine["name"]: machine for machine in read_machines()}
DGX = "8x H100 in a DGX: twelve cards, eight of them beside GPUs"


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def topology_of(name):
    snapshot = build_snapshot(MACHINES[name])
    return add_verdict(build_topology(snapshot), run_checks(Context(snapshot), TOPOLOGY_CHECKS))


def shown(topology, *, verbose=False):
    return render_topology(topology, Style(verbose=verbose))


@walk(MACHINES)
def test_no_line_is_wider_than_the_terminal(name):
    for verbose in (False, True):
        text = shown(topology_of(name), verbose=verbose)
        assert max(map(len, text.splitlines())) <= 80, text


def test_the_matrix_of_twelve_cards_has_a_second_block_where_there_is_no_room(monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")
    lines = shown(topology_of(DGX)).splitlines()
    heads = [
        line.split()
        for line in lines
        if line.split() and all(word.startswith("NIC") for word in line.split())
    ]
    assert [name for head in heads for name in head] == [f"NIC{number}" for number in range(12)]
    assert len(heads) == 2


def test_each_gpu_has_its_card():
    lines = shown(topology_of(DGX)).splitlines()
    rows = [line.split() for line in lines if line.split()[:1] in (["0"], ["1"], ["7"])]
    assert [row[-1] for row in rows] == ["mlx5_0", "mlx5_3", "mlx5_11"]
    assert "  P2P over NVL: 28 pairs of GPUs, links of 450 GB/s each way" in lines


def test_what_stands_out_comes_first_with_its_remedy():
    lines = shown(topology_of("8x B200, one without NVLink, six rows shown")).splitlines()
    assert lines[0].startswith("FAIL")
    assert lines[1].startswith("  FAIL nvlink.link_down: GPU 2")
    assert any(line.startswith("    Do: ") for line in lines[2:5])


def test_what_was_measured_is_a_matrix_of_its_own():
    topology = topology_of("4x TITAN X on two Xeon E5")
    first, *others = topology.links
    measured = MeasuredLink("peer_copy.to.GPU-1", 11.8e9, "B/s", datetime(2026, 11, 20, 21, 4, tzinfo=UTC))
    before, after = (
        shown(topology),
        shown(replace(topology, links=(replace(first, measured=measured), *others))),
    )
    assert "gpudiag bandwidth" in before
    assert "gpudiag bandwidth" not in after
    assert "in GB/s (last: 2026-11-20 21:04 UTC)" in after
    assert "GPU0 X    11.8 -    -" in after


def test_virtual_functions_are_counted_and_shown_on_demand():
    topology = topology_of("4x TITAN X on two Xeon E5")
    whole = topology.nics[0]
    virtual = replace(whole, name="mlx4_9", number=2, virtual_function=True)
    assert isinstance(virtual, TopologyNic)
    path = replace(topology.nic_paths[0], nic="mlx4_9")
    paths = (*topology.nic_paths, *(replace(path, uuid=device.uuid) for device in topology.devices))
    topology = replace(topology, nics=(*topology.nics, virtual), nic_paths=paths)
    assert "and 1 virtual function: --verbose has all" in shown(topology)
    assert "mlx4_9" not in shown(topology)
    assert "NIC2 mlx4_9" in shown(topology, verbose=True)


def test_the_tree_shows_which_card_is_below_the_switch_of_which_gpu():
    text = shown(topology_of("8x H100: a switch with the last GPU and its card"))
    assert "pci0000:d6: d7:00.0 > [GPU0, NIC0]" in text
    assert "pci0000:d6: d6:01.0 > d7:00.0 > [d8:00.0 > GPU0, d8:01.0 > NIC0]" in shown(
        topology_of("8x H100: a switch with the last GPU and its card"), verbose=True
    )


def test_a_machine_without_a_gpu_is_no_pass():
    snapshot = build_snapshot(MACHINES[DGX])
    snapshot = replace(snapshot, devices=())
    topology = add_verdict(build_topology(snapshot), run_checks(Context(snapshot), TOPOLOGY_CHECKS))
    text = shown(topology)
    assert text.startswith("ERROR a1: no GPU is listed")
    assert "mlx5_11" in text  # the cards are shown all the same
