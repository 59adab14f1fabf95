"""Every machine that comes with gpudiag: whole, valid, and healthy by its readings."""

import re
from dataclasses import fields

import pytest

from gpudiag.model.codec import decode
from gpudiag.model.device import Device, DeviceView, TorchFacts
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.simulate.loader import base_machines
from gpudiag.simulate.scenario import Scenario
from tests.unit.simulate_scenarios.machines import device_of, listed, machine

NAMED_IN_THE_ISSUE = set(
    """
    h100x8 a100x8 h200x8 b200x8 a10x1 t4x1 rtx4090x2 gb10 h100-mig h100x8-container2 h100x8-slurm4
    wsl2-rtx laptop no-persistence none gb200x4 gb300x4 gh200 l40sx8 v100x8 a6000x4 a100-pciex4 vgpu
    a100x16 h100-vm h200-vm
    """.split()
)
# Readings from the library or from the place on the machine, not from the machine file.
PEERS = "peers"
SUBSYSTEM = "pci_subsystem_id"  # a key of a GPU in a machine file, and no reading there
NVLINK_SPEED = "nvlink_throughput_bytes_per_second"  # follows from two looks at the counters
UUID = re.compile(r"(GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
BUS_ID = re.compile(r"[0-9a-f]{8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


@pytest.fixture(params=sorted(base_machines()))
def base(request: pytest.FixtureRequest) -> Scenario:
    return machine(request.param)


def test_every_machine_of_the_issue_is_there():
    assert set(base_machines()) == NAMED_IN_THE_ISSUE


def test_every_machine_lists_where_its_facts_come_from(base: Scenario):
    assert base.sources
    assert base.description
    assert base.hostname


def test_every_reading_is_a_value_or_a_reason(base: Scenario):
    for gpu in base.gpus:
        device = device_of(gpu)
        for field in fields(Device):
            reading = getattr(device, field.name)
            judged = field.name == "free"  # by a listing, and no reading
            if (
                isinstance(reading, Missing)
                and not judged
                and field.name not in (PEERS, SUBSYSTEM, NVLINK_SPEED)
            ):
                assert reading.reason is not MissingReason.NOT_ASKED, field.name


def test_no_reading_is_both_a_value_and_missing(base: Scenario):
    for gpu in base.gpus:
        assert not set(gpu.readings) & set(gpu.missing)


def test_identifiers_are_valid_and_given_once(base: Scenario):
    uuids = [gpu.readings["uuid"] for gpu in base.gpus]
    uuids += [instance["uuid"] for gpu in base.gpus for instance in gpu.readings.get("mig_instances", ())]
    bus_ids = [gpu.readings["bus_id"] for gpu in base.gpus]
    serials = [gpu.readings["serial"] for gpu in base.gpus if "serial" in gpu.readings]
    assert all(UUID.fullmatch(uuid) for uuid in uuids)
    assert all(BUS_ID.fullmatch(bus_id) for bus_id in bus_ids)
    for identifiers in (uuids, bus_ids, serials):
        assert len(identifiers) == len(set(identifiers))


def test_nvml_numbers_what_it_lists_from_0(base: Scenario):
    assert [gpu.readings["nvml_index"] for gpu in listed(base)] == list(range(len(listed(base))))


def test_memory_adds_up(base: Scenario):
    for gpu in base.gpus:
        if "memory_total_bytes" in gpu.readings:
            parts = ("memory_used_bytes", "memory_free_bytes", "memory_reserved_bytes")
            assert sum(gpu.readings[part] for part in parts) == gpu.readings["memory_total_bytes"]


def test_nothing_that_counts_faults_counts_any_that_matters(base: Scenario):
    faultless = (
        {"ecc_uncorrected_volatile": 0, "ecc_uncorrected_aggregate": 0, "row_remap_pending": False}
        | {"row_remap_failed": False, "page_retirement_pending": False, "recovery_action": "none"}
        | {"compute_mode": "default", "clocks_event_reasons": ["gpu_idle"], "responding": True}
    )
    for gpu in base.gpus:
        for name, healthy in faultless.items():
            assert gpu.readings.get(name, healthy) == healthy
        assert gpu.readings.get("mig_mode") == gpu.readings.get("mig_mode_pending")
        assert gpu.readings.get("ecc_mode") == gpu.readings.get("ecc_mode_pending")
        assert gpu.readings.get("temperature_celsius", 0) < gpu.readings.get(
            "temperature_slowdown_celsius", 90
        )
        assert gpu.readings.get("temperature_margin_celsius", 90) > 10
        assert all(link["active"] for link in gpu.readings.get("nvlinks", ()))


def test_data_centre_gpus_keep_their_driver_loaded_and_count_memory_errors(base: Scenario):
    # The last: a share in a guest.
    others = (
        "NVIDIA GeForce",
        "NVIDIA GB10",
        "NVIDIA RTX",
        "NVIDIA L40S-48C",
    )
    for gpu in base.gpus:
        if not gpu.readings["name"].startswith(others):
            assert gpu.readings["persistence_mode"] == "enabled"
            assert gpu.readings["ecc_mode"] == "enabled"


def test_no_two_functions_share_a_pci_address(base: Scenario):
    addresses = [path for path in base.host.files if re.fullmatch(r"sys/devices/.*/vendor", path)]
    names = [path.split("/")[-2] for path in addresses]
    assert len(names) == len(set(names))


def test_torch_answers_in_the_form_of_the_model(base: Scenario):
    facts = decode(TorchFacts, base.torch["facts"])
    views = [decode(DeviceView, view) for view in base.torch["devices"]]
    assert facts.cuda_available is bool(views)
    assert all(view.context_starts is True for view in views)


def test_two_loads_at_one_time_are_equal(base: Scenario):
    machine.cache_clear()
    assert machine(base.name) == base


def test_the_names_of_the_machines_show_how_many_gpus_there_are():
    counted = {name: int(match[1]) for name in base_machines() if (match := re.fullmatch(r"\w+x(\d+)", name))}
    assert counted
    assert {name: len(machine(name).gpus) for name in counted} == counted


def test_parts_of_a_machine():
    container, job = machine("h100x8-container2"), machine("h100x8-slurm4")
    assert [gpu.minor_number for gpu in listed(container)] == [2, 5]
    assert [node for node in container.host.nodes if node.removeprefix("nvidia").isdecimal()] == [
        "nvidia2",
        "nvidia5",
    ]
    assert len(container.gpus) == len(listed(job)) == 8
    assert len(container.torch["devices"]) == 2
    chosen = [view["uuid"] for view in job.torch["devices"]]
    assert chosen == [gpu.readings["uuid"] for gpu in listed(job)[4:]]


def test_machines_without_what_others_have():
    none, wsl, gb10 = machine("none"), machine("wsl2-rtx"), machine("gb10")
    assert none.nvml.present is False
    assert not any(
        "10de" in text
        for path, text in {**none.host.files, **wsl.host.files}.items()
        if path.endswith("vendor")
    )
    assert wsl.host.nodes == ("dxg",)
    assert "proc/driver/nvidia/version" not in wsl.host.files
    assert gb10.gpus[0].missing["memory_total_bytes"] == "not_supported"
    assert gb10.torch["devices"][0]["memory_total_bytes"] == 127600748 * 1024
    assert machine("no-persistence").nvml.init_delay_seconds >= 1
