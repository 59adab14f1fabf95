"""Every reading of a scenario comes back through pynvml: the value, or the code of its reason."""

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from gpudiag.model.device import Device, DeviceId
from gpudiag.simulate.scenario import Scenario, SimulatedGpu
from gpudiag.simulate.session import Session
from tests.unit.simulate_library.every_reading import PROCESSES, READINGS, WAYS
from tests.unit.simulate_library.machines import ask, make_gpu, make_machine, run_script

_SCRIPT = Path(__file__).parent / "every_reading.py"
# What no call of one GPU gives: facts of CUDA and of sysfs, what the probe concludes, and what is
# between GPUs; MIG instances and peers have tests of their own.
_NOT_ASKED = set(
    """
    id responding memory_kind cuda_ordinal pcie_width_slot_max mig_instances peers pci_subsystem_id
    nvlink_throughput_bytes_per_second
    """.split()
)
_SwitchOn = Callable[[Scenario], Session]

# Readings that share a call are refused together.
_TOGETHER = (
    ("mig_mode", "mig_mode_pending"),
    ("memory_total_bytes", "memory_used_bytes", "memory_free_bytes", "memory_reserved_bytes"),
    ("utilization_percent", "memory_utilization_percent"),
    ("power_limit_min_watts", "power_limit_max_watts"),
    ("ecc_mode", "ecc_mode_pending"),
    ("row_remap_correctable", "row_remap_uncorrectable", "row_remap_pending", "row_remap_failed"),
)


def asked_readings() -> set[str]:
    """The readings that the script asks for."""
    return set(WAYS)


def test_the_script_asks_for_every_reading_that_nvml_gives() -> None:
    readings = {field.name for field in (*fields(DeviceId), *fields(Device))}
    assert asked_readings() == readings - _NOT_ASKED - {"free"}  # which a listing judges


def test_every_reading_comes_back(switch_on: _SwitchOn) -> None:
    gpu = make_gpu()
    answers = run_script(switch_on(make_machine(gpu)), _SCRIPT)
    expected = {name: value for name, value in gpu.readings.items() if name not in _NOT_ASKED}
    expected["processes"] = [
        {name: process[name] for name in ("pid", "kind", "memory_used_bytes")} for process in PROCESSES
    ]
    assert answers == expected


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("not_supported", 3),
        ("no_permission", 4),
        ("function_not_found", 13),
        ("device_lost", 15),
        ("error", 999),
    ],
)
def test_a_missing_reading_answers_the_code_of_its_reason(
    switch_on: _SwitchOn, reason: str, code: int
) -> None:
    own = {"nvml_index": 0}
    names = asked_readings() - {"nvml_index"}
    gpu = SimulatedGpu(readings=own, missing=dict.fromkeys(names, reason))
    answers = run_script(switch_on(make_machine(gpu)), _SCRIPT)
    assert answers == {**own, **{key: {"code": code} for key in names}}


@pytest.mark.parametrize("together", _TOGETHER, ids=lambda names: names[0])
def test_a_missing_reading_takes_only_those_of_its_call_with_it(
    switch_on: _SwitchOn, together: tuple[str, ...]
) -> None:
    readings = {name: value for name, value in make_gpu().readings.items() if name != together[0]}
    gpu = SimulatedGpu(readings=readings, missing={together[0]: "no_permission"})
    healthy = run_script(switch_on(make_machine()), _SCRIPT, "--first")
    answers = run_script(switch_on(make_machine(gpu)), _SCRIPT, "--first")
    assert answers == {**healthy, **{key: {"code": 4} for key in together}}


def test_a_reading_that_nobody_mentions_is_not_supported(switch_on: _SwitchOn) -> None:
    session = switch_on(make_machine(SimulatedGpu(readings={"uuid": "GPU-0"})))
    assert ask(session, "code(N.nvmlDeviceGetFanSpeed, gpu())") == 3


def test_memory_without_a_reserved_figure_has_the_first_version_only(switch_on: _SwitchOn) -> None:
    readings = {name: value for name, value in make_gpu().readings.items() if name != "memory_reserved_bytes"}
    missing = {"memory_reserved_bytes": "function_not_found"}
    session = switch_on(make_machine(SimulatedGpu(readings=readings, missing=missing)))
    expression = """[
        code(N.nvmlDeviceGetMemoryInfo, gpu(), version=N.nvmlMemory_v2), N.nvmlDeviceGetMemoryInfo(gpu()).used
    ]"""
    assert ask(session, expression) == [13, READINGS["memory_used_bytes"]]


def test_per_place_counts_and_totals_have_their_field_ids(switch_on: _SwitchOn) -> None:
    fields_asked = """[(v.nvmlReturn, v.value.ullVal) for v in N.nvmlDeviceGetFieldValues(gpu(), [
        N.NVML_FI_DEV_ECC_DBE_VOL_DEV, N.NVML_FI_DEV_ECC_SBE_AGG_L2, N.NVML_FI_DEV_ECC_SBE_VOL_L1,
        N.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L2, N.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,
        (N.NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY, 17)])]"""
    counts = ask(switch_on(make_machine()), fields_asked)
    assert counts == [[0, 2], [0, 203], [3, 0], [0, 12], [0, sum(range(30, 48))], [0, 57]]


@pytest.mark.parametrize(
    "changes",
    [
        {"recovery_action": "prayer"},
        {"clocks_event_reasons": ["boredom"]},
        {"compute_mode": "open"},
        {"architecture": "voodoo"},
        {"bus_id": "19:0"},
        {"missing": {"fan_speed_percent": "shy"}, "fan_speed_percent": None},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_word_that_nvml_does_not_have_is_the_callers_mistake(changes: dict[str, Any]) -> None:
    from gpudiag.errors import UsageError
    from gpudiag.simulate.nvml.state import render_state

    with pytest.raises(UsageError):
        render_state(make_machine(make_gpu(**changes)))
