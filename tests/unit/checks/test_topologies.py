"""Topologies that people posted: the matrix of nvidia-smi, NCCL's own paths, and no finding on a healthy
machine.
"""

from dataclasses import replace

import pytest

from gpudiag.checks.links.topology import build_topology
from gpudiag.checks.on_topology import TOPOLOGY_CHECKS
from gpudiag.checks.runner import run_checks
from gpudiag.model.context import Context
from gpudiag.model.evidence import DeviceSubject
from gpudiag.model.reading import Missing
from tests.topologies import build_snapshot, read_machines
from tests.walking import walk

MACHINES = {machine["name"]: machine for machine in read_machines()}


def matrix_of(topology):
    """The rows of `nvidia-smi topo -m` by the document."""
    links = {(link.from_uuid, link.to_uuid): link.label for link in topology.links}
    paths = {(path.uuid, path.nic): path.label for path in topology.nic_paths}
    return [
        " ".join(
            [
                *("X" if one is other else links[one.uuid, other.uuid] for other in topology.devices),
                *(paths[one.uuid, nic.name] for nic in topology.nics),
            ]
        )
        for one in topology.devices
    ]


@walk([name for name, machine in MACHINES.items() if "matrix" in machine])
def test_the_matrix_is_that_of_nvidia_smi(name):
    machine = MACHINES[name]
    assert matrix_of(build_topology(build_snapshot(machine))) == machine["matrix"]


@walk([name for name, machine in MACHINES.items() if "nccl_pairs" in machine])
def test_the_paths_are_those_of_nccl_s_log(name):
    machine = MACHINES[name]
    topology = build_topology(build_snapshot(machine))
    index = {device.uuid: str(device.nvml_index) for device in topology.devices}
    found = {
        f"{index[link.from_uuid]}-{index[link.to_uuid]}": f"{link.nccl_transport} {link.nccl_path}"
        for link in topology.links
    }
    for pair, words in machine.get("nccl_pairs", {}).items():
        assert found[pair] == words, pair


@walk([name for name, machine in MACHINES.items() if "nccl_nics" in machine])
def test_the_ways_to_cards_are_those_of_nccl_s_log(name):
    """The log has them from the card's side, where there is no relay over another GPU."""
    machine = MACHINES[name]
    topology = build_topology(build_snapshot(machine))
    names = [nic.split()[0] for nic in machine["nics"]]
    for device, row in zip(topology.devices, machine["nccl_nics"], strict=True):
        ways = {path.nic: path.nccl_path for path in topology.nic_paths if path.uuid == device.uuid}
        for nic, expected in zip(names, row.split(), strict=True):
            relayed = expected in ("PHB", "SYS") and ways[nic] == "PXN"
            assert ways[nic] == expected or relayed, nic


@walk(list(MACHINES))
def test_findings_are_those_of_the_thread(name):
    machine = MACHINES[name]
    results = run_checks(Context(build_snapshot(machine)), TOPOLOGY_CHECKS)
    found = []
    for finding in (finding for result in results for finding in result.findings):
        subject = finding.subject
        number = f" {subject.nvml_index}" if isinstance(subject, DeviceSubject) else ""
        found.append(f"{finding.code}{number}")
    assert found == machine.get("findings", [])


@pytest.mark.parametrize("kind", ["lspci", "nccl"])
def test_several_trees_were_posted_beside_what_they_are_held_against(kind):
    machines = [machine for machine in MACHINES.values() if machine["tree"] == kind]
    assert (
        sum(any(key in machine for key in ("matrix", "nccl_nics", "nccl_pairs")) for machine in machines) >= 2
    )


def test_each_pair_has_the_rate_of_its_links():
    """NVLinks together; else the slower PCIe link, as GPU and slot allow."""
    linked = build_topology(build_snapshot(MACHINES["DGX-1 with V100: the first switch"]))
    assert {link.bytes_per_second for link in linked.links} == {25e9}  # one NVLink 2
    snapshot = build_snapshot(MACHINES["2x RTX 5090 on a Threadripper PRO 3975WX"])
    first, second = snapshot.devices
    narrow = replace(second, pcie_generation_slot_max=3, pcie_width_slot_max=8)
    whole, halved = (build_topology(replace(snapshot, devices=(first, other))) for other in (second, narrow))
    assert [round(one.links[0].bytes_per_second / 1e9, 1) for one in (whole, halved)] == [31.5, 7.9]
    of_next_generation = replace(second, pcie_generation_gpu_max=9)
    unknown = build_topology(replace(snapshot, devices=(of_next_generation, of_next_generation)))
    assert isinstance(unknown.links[0].bytes_per_second, Missing)
