"""A recorded machine comes back with the readings that it was recorded with."""

from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from gpudiag.compat import UTC
from gpudiag.errors import UsageError
from gpudiag.model.codec import decode, dumps
from gpudiag.model.device import DeviceView, Snapshot, SourceState, SourceStatus, TorchFacts
from gpudiag.model.host import Container, Machine, NetworkInterface, PciDevice
from gpudiag.model.host_state import HostState
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason
from gpudiag.probe.host.pci_places import read_pci_places
from gpudiag.simulate.loader import load_scenario
from gpudiag.simulate.scenario import Scenario
from tests.topologies import build_snapshot, read_machines
from tests.unit.checks.machines import make_pci_gpu
from tests.unit.simulate_scenarios.machines import NOW, device_of, listed, machine

TAKEN_AT = datetime(2026, 11, 1, 12, 0, tzinfo=UTC)


def snapshot_of(scenario: Scenario) -> Snapshot:
    """The snapshot that a probe of that machine would make, without asking one."""
    gpus = listed(scenario)
    torch = scenario.torch
    return Snapshot(
        host=scenario.hostname,
        taken_at=TAKEN_AT,
        simulated=None,
        driver_version=scenario.nvml.driver_version,
        cuda_driver_version=scenario.nvml.cuda_driver_version,
        nvml_version=scenario.nvml.nvml_version,
        sources=(SourceStatus("nvml", SourceState.OK),),
        devices=tuple(map(device_of, gpus)),
        views=tuple(decode(DeviceView, view) for view in torch["devices"]),
        disagreements=(),
        torch=decode(TorchFacts, torch["facts"]),
        machine=machine_of(scenario),
    )


def machine_of(scenario: Scenario) -> Machine:
    no_link = Missing(MissingReason.NOT_SUPPORTED)
    return Machine(
        hostname=scenario.hostname,
        kernel_release="6.8.0-85-generic",
        operating_system="Ubuntu 24.04.3 LTS",
        boot_id=Missing(MissingReason.NO_PERMISSION),
        processor="AMD EPYC",
        processor_architecture="x86_64",
        logical_processors=64,
        logical_processors_allowed=64,
        memory_total_bytes=1 << 40,
        memory_available_bytes=1 << 39,
        shared_memory_total_bytes=1 << 38,
        kernel_driver_version=scenario.nvml.driver_version,
        kernel_driver_flavor="open",
        kernel_modules=("nvidia",),
        pci_devices=tuple(
            PciDevice(
                gpu.readings["bus_id"], "10de", "2330", "0302", "nvidia",
                0, no_link, no_link, 16, 16, no_link, no_link,
            )
            for gpu in scenario.gpus
        ),
        device_nodes=("/dev/nvidia0", "/dev/nvidiactl"),
        interfaces=(NetworkInterface("eth0", True, False, 1500, no_link, ("10.1.2.3", "fe80::1")),),
        container=Container("kubernetes", "ab" * 32),
        allocation={"NVIDIA_VISIBLE_DEVICES": "all"},
    )  # fmt: skip


def record(folder: Path, snapshot: Snapshot) -> str:
    path = folder / "a1.json"
    path.write_text(dumps(snapshot))
    return str(path)


@pytest.mark.parametrize("spec", ["h100x8", "t4x1", "gb10", "h100-mig", "rtx4090x2", "h100x8-container2"])
def test_readings_come_back(tmp_path: Path, spec: str):
    original = machine(spec)
    again = load_scenario(record(tmp_path, snapshot_of(original)), now=NOW)
    assert again.hostname == original.hostname
    assert again.nvml.driver_version == original.nvml.driver_version
    for before, after in zip(listed(original), listed(again), strict=True):
        assert device_of(before) == device_of(after)


def test_the_machine_around_comes_back(tmp_path: Path):
    scenario = load_scenario(record(tmp_path, snapshot_of(machine("h100x8"))), now=NOW)
    files = scenario.host.files
    assert files["proc/sys/kernel/osrelease"] == "6.8.0-85-generic\n"
    assert "proc/sys/kernel/random/boot_id" not in files
    assert "580.105.08" in files["proc/driver/nvidia/version"]
    assert "10.1.2.3" in files["proc/net/fib_trie"]
    assert "kubepods" in files["proc/self/cgroup"]
    assert scenario.host.nodes == ("nvidia0", "nvidiactl")
    assert scenario.environment == {"NVIDIA_VISIBLE_DEVICES": "all"}
    assert len(scenario.torch["devices"]) == 8


def test_a_lost_and_a_hung_gpu_stay_so(tmp_path: Path):
    scenario = load_scenario(record(tmp_path, snapshot_of(machine("h100x8+lost:3+hang:6"))), now=NOW)
    lost, hung = listed(scenario)[3], listed(scenario)[6]
    assert lost.faults[0].code == 15
    assert hung.faults[0].hang
    assert listed(scenario)[4].faults == ()


def test_cuda_sees_what_it_saw(tmp_path: Path):
    whole = machine("h100x8+lost:3+compute-prohibited:5")
    again = load_scenario(record(tmp_path, snapshot_of(whole)), now=NOW)
    views = [
        [view.get("context_starts") for view in scenario.torch["devices"]] for scenario in (whole, again)
    ]
    assert views[0] == views[1]
    assert again.torch["facts"]["device_count"] == 8


def test_faults_can_be_added_to_a_record(tmp_path: Path):
    spec = record(tmp_path, snapshot_of(machine("h100x8")))
    scenario = load_scenario(f"{spec}+ecc:2", now=NOW)
    assert scenario.gpus[2].readings["ecc_uncorrected_volatile"] == 1
    assert scenario.gpus[2].xid_codes == (48, 63, 154)


@pytest.mark.parametrize(
    ("state", "init_code"),
    [(SourceState.DRIVER_NOT_LOADED, 9), (SourceState.VERSION_MISMATCH, 18), (SourceState.NO_PERMISSION, 4)],
)
def test_a_broken_driver_stays_broken(tmp_path: Path, state: SourceState, init_code: int):
    whole = snapshot_of(machine("h100x8"))
    broken = replace(whole, sources=(SourceStatus("nvml", state),), devices=(), views=(), torch=NOT_ASKED)
    scenario = load_scenario(record(tmp_path, broken), now=NOW)
    assert scenario.nvml.init_code == init_code
    assert listed(scenario) == []
    assert len(scenario.gpus) == 8, "the bus still shows them"
    assert scenario.torch == {"absent": True}


def test_a_record_without_nvml_explains_how_to_make_one(tmp_path: Path):
    blind = replace(snapshot_of(machine("t4x1")), sources=())
    with pytest.raises(UsageError) as raised:
        load_scenario(record(tmp_path, blind), now=NOW)
    assert "gpudiag list" in raised.value.hint


def test_a_file_that_is_no_document_is_named(tmp_path: Path):
    path = tmp_path / "a1.json"
    path.write_text("{")
    with pytest.raises(UsageError, match=r"a1\.json"):
        load_scenario(str(path), now=NOW)


def test_the_places_on_the_bus_come_back(tmp_path: Path):
    """A report has them; a listing has not."""
    posted = next(one for one in read_machines() if one["name"].startswith("8x H100 in a DGX"))
    was = build_snapshot(posted)
    on_bus = tuple(make_pci_gpu(0, bus_id=device.id.bus_id) for device in was.devices)
    was = replace(was, machine=replace(was.machine, pci_devices=on_bus))
    record, root = tmp_path / "record.json", tmp_path / "root"
    record.write_text(dumps(was))
    tree = load_scenario(str(record)).host
    for name, text in tree.files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    for name, target in tree.links.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(target)
    places = {place["bus_id"]: place for place in read_pci_places(str(root))}
    assert isinstance(was.machine.state, HostState)
    assert not isinstance(was.machine.state.pci_places, Missing)
    for place in was.machine.state.pci_places:
        now = places[place.bus_id]
        assert (now["root"], now["bridges"], now["numa_node"]) == (
            place.root,
            list(place.bridges),
            place.numa_node,
        )
        assert now["rdma_devices"] == list(place.rdma_devices)
