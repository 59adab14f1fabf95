"""Every base machine, asked by gpudiag's own probes: what the scenario says comes back, and no more.

The readings travel through the simulated NVML library and the host tree; torch's answer and
nvidia-smi's are held against them. A healthy machine has no disagreement that nothing explains.
"""

from typing import Any

import pytest

from gpudiag.reference.declaration import Activity
from gpudiag.reference.readings import READINGS
from gpudiag.simulate.loader import base_machines
from tests.scenarios.asked import ask_machine, covers

# Unified memory is the host's: the inventory fills in what NVML does not have.
FILLED_IN = {"gb10": {"memory_total_bytes", "memory_used_bytes", "memory_free_bytes"}}
# A 0 that its driver gives of a counter that the hardware does not have.
NOT_THERE = {"gb10": {"memory_utilization_percent"}}
FROM_TORCH = {"cuda_ordinal"}
# What the process was given of the machine explains these.
EXPECTED = {"h100x8-container2": ["count"], "h100x8-slurm4": ["count"]}
STATES = {
    "none": {"nvml": "library_absent", "gputil": "library_absent", "torch": "no_devices"},
}
ACTIVITY = {one.name for one in READINGS if isinstance(one.question, Activity)}
HEALTHY = {"nvml": "ok", "gputil": "ok", "torch": "ok"}


@pytest.mark.sliced
@pytest.mark.parametrize("name", sorted(base_machines()))
def test_a_base_machine_comes_back_as_it_is(name: str):
    scenario, document = ask_machine(name)
    states = {source["name"]: source["state"] for source in document["sources"]}
    assert states == {**states, **STATES.get(name, HEALTHY)}
    assert [difference["field"] for difference in document["disagreements"]] == EXPECTED.get(name, [])
    assert all(difference["expected"] for difference in document["disagreements"])
    assert document["simulated"] == name
    gpus = [gpu for gpu in scenario.gpus if gpu.visible]
    for gpu, device in zip(gpus, document["devices"], strict=True):
        wrong = {
            reading: device[reading]
            for reading, value in gpu.readings.items()
            if reading not in NOT_THERE.get(name, ())
            if was_asked(device, reading) and not covers(of_one_look(reading, value), device[reading])
        }
        assert wrong == {}
        for reading, reason in gpu.missing.items():
            if was_asked(device, reading) and reading not in FROM_TORCH | FILLED_IN.get(name, set()):
                assert device["missing"].get(reading) == reason, reading


def of_one_look(reading: str, value: Any) -> Any:
    """The reading without what takes two looks: the activity of MIG instances."""
    if reading != "mig_instances":
        return value
    return [{name: word for name, word in instance.items() if name not in ACTIVITY} for instance in value]


def was_asked(device: dict, reading: str) -> bool:
    """Whether the probes asked for it: what costs more than a glance they leave to the checks."""
    return reading in device and device.get("missing", {}).get(reading) != "not_asked"


@pytest.mark.parametrize(
    ("spec", "nvml", "torch"),
    [
        ("h100x8+no-library", "library_absent", "failed"),
        ("h100x8+no-driver", "driver_not_loaded", "failed"),
        ("h100x8+nouveau", "driver_not_loaded", "failed"),
        ("h100x8+version-mismatch", "version_mismatch", "failed"),
        ("h100x8+no-permission", "no_permission", "failed"),
        ("h100x8+zero-gpus", "no_devices", "no_devices"),
        ("h100x8+cuda-broken", "ok", "failed"),
        ("h100x8+no-torch", "ok", "library_absent"),
        ("h100x8+cpu-torch", "ok", "no_devices"),
    ],
)
def test_broken_software_is_told_apart(spec: str, nvml: str, torch: str):
    _, document = ask_machine(spec)
    states = {source["name"]: source["state"] for source in document["sources"]}
    assert (states["nvml"], states["torch"]) == (nvml, torch)


@pytest.mark.parametrize(
    ("spec", "reason"), [("h100x8+lost:3", "device_lost"), ("h100x8+hang:3", "timed_out")]
)
def test_a_silent_gpu_stays_a_row_and_costs_only_itself(spec: str, reason: str):
    scenario, document = ask_machine(spec, deadline_seconds=1.0)
    devices = {device["uuid"]: device for device in document["devices"]}
    silent = scenario.gpus[3].readings
    assert len(devices) == 8
    assert devices[silent["uuid"]]["missing"]["responding"] == reason
    assert devices[silent["uuid"]]["bus_id"] == silent["bus_id"]
    assert [device["responding"] for uuid, device in devices.items() if uuid != silent["uuid"]] == [True] * 7
