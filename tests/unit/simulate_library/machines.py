"""Small machines for the tests of the simulated library, and programs that look at them."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpudiag.simulate.scenario import HostTree, Scenario, SimulatedGpu, SimulatedNvml
from gpudiag.simulate.session import Session

TIME_LIMIT_SECONDS = 60  # proves that a program ends; none needs a tenth of it
TOTAL, USED, RESERVED = 85_520_809_984, 5_368_709_120, 502_857_728
LINKS = [
    {
        "link": number,
        "active": number != 3,
        "remote_bus_id": f"00000000:0{5 + number % 4}:00.0",
        "crc_flit_errors": 10 + number,
        "crc_data_errors": 20 + number,
        "replay_errors": 30 + number,
        "recovery_errors": 40 + number,
    }
    for number in range(18)
]
LOCATIONS = [
    {
        "location": location,
        "corrected_volatile": 100 * place + 1,
        "uncorrected_volatile": 100 * place + 2,
        "corrected_aggregate": 100 * place + 3,
        "uncorrected_aggregate": 100 * place + 4,
    }
    for place, location in enumerate(("dram", "sram", "l2_cache"))
]
PROCESSES = [
    {"pid": 4242, "kind": "compute", "memory_used_bytes": 3_221_225_472, "command": "python train.py"},
    {
        "pid": 4243,
        "kind": "compute",
        "memory_used_bytes": None,
        "missing": {"memory_used_bytes": "no_permission"},
    },
    {"pid": 17, "kind": "graphics", "memory_used_bytes": 1_048_576},
    {"pid": 99, "kind": "mps", "memory_used_bytes": 2_097_152},
]
# Every reading has a value that is its own, so that none can pass for another.
READINGS: dict[str, Any] = {
    "name": "NVIDIA H100 80GB HBM3",
    "vbios_version": "96.00.99.00.01",
    "board_part_number": "692-2G520-0200-000",
    "architecture": "hopper",
    "compute_capability": "9.0",
    "numa_node": 1,
    "mig_mode": "disabled",
    "mig_mode_pending": "enabled",
    "mig_instances": [],
    "memory_total_bytes": TOTAL,
    "memory_used_bytes": USED,
    "memory_free_bytes": TOTAL - USED - RESERVED,
    "memory_reserved_bytes": RESERVED,
    "utilization_percent": 98,
    "memory_utilization_percent": 41,
    "temperature_celsius": 61,
    "memory_temperature_celsius": 72,
    "temperature_margin_celsius": 26,
    "temperature_slowdown_celsius": 89,
    "temperature_shutdown_celsius": 92,
    "power_draw_watts": 640.512,
    "power_limit_enforced_watts": 690.0,
    "power_limit_watts": 695.5,
    "power_limit_default_watts": 700.0,
    "power_limit_min_watts": 200.0,
    "power_limit_max_watts": 701.0,
    "graphics_clock_mhz": 1755,
    "sm_clock_mhz": 1756,
    "memory_clock_mhz": 2619,
    "video_clock_mhz": 1365,
    "graphics_clock_max_mhz": 1980,
    "sm_clock_max_mhz": 1981,
    "memory_clock_max_mhz": 2620,
    "graphics_clock_application_mhz": 1970,
    "memory_clock_application_mhz": 2618,
    "pstate": 2,
    "clocks_event_reasons": ["sw_power_cap", "hw_thermal_slowdown"],
    "ecc_mode": "enabled",
    "ecc_mode_pending": "disabled",
    "ecc_corrected_volatile": 3,
    "ecc_uncorrected_volatile": 4,
    "ecc_corrected_aggregate": 5_000_000_000,
    "ecc_uncorrected_aggregate": 6,
    "ecc_locations": LOCATIONS,
    "row_remap_correctable": 7,
    "row_remap_uncorrectable": 8,
    "row_remap_pending": True,
    "row_remap_failed": False,
    "row_remap_histogram": {
        "max_banks": 2550,
        "high_banks": 5,
        "partial_banks": 3,
        "low_banks": 2,
        "none_banks": 1,
    },
    "retired_pages_corrected": 9,
    "retired_pages_uncorrected": 11,
    "page_retirement_pending": True,
    "pcie_generation": 3,
    "pcie_generation_gpu_max": 5,
    "pcie_generation_slot_max": 4,
    "pcie_width": 8,
    "pcie_width_gpu_max": 16,
    "pcie_width_slot_max": 16,
    "pcie_replay_count": 150,
    "nvlinks": LINKS,
    "recovery_action": "drain_and_reset",
    "fan_speed_percent": 33,
    "persistence_mode": "enabled",
    "compute_mode": "exclusive_process",
    "processes": PROCESSES,
    "brand": "tesla",
    "memory_bus_width_bits": 5120,
    "cuda_cores": 16896,
    "gsp_firmware_version": "580.105.08",
    "gsp_firmware_mode": "enabled",
    "gsp_firmware_mode_default": "disabled",
    "inforom_version": "G520.0200.00.05",
    "inforom_valid": True,
    "ecc_sram_threshold_exceeded": True,
    "memory_unrepairable": True,
    "memory_channel_repair_pending": False,
    "tpc_repair_pending": True,
    "temperature_margin_slowdown_celsius": -2,
    "temperature_gpu_max_celsius": 87,
    "temperature_memory_max_celsius": 95,
    "graphics_clock_application_default_mhz": 1960,
    "memory_clock_application_default_mhz": 2617,
    "throttle_seconds": {
        "power": 7015.5,
        "thermal": 2.25,
        "sync_boost": 3.5,
        "board_limit": 4.75,
        "reliability": 5.125,
    },
    "pcie_errors": {
        "correctable": 51,
        "nonfatal": 52,
        "fatal": 53,
        "bad_tlp": 54,
        "bad_dllp": 55,
        "naks_received": 56,
        "naks_sent": 57,
    },
    "nvlink_bytes_per_second": 26_562_000_000.0,
    "fabric": {
        "state": "completed",
        "status": "success",
        "clique_id": 7,
        "cluster_uuid": "01020304-0506-0708-090a-0b0c0d0e0f10",
        "health": "unhealthy",
        "faults": ["degraded_bw", "insufficient_nvlinks"],
    },
}


def make_gpu(index: int = 0, **changes: Any) -> SimulatedGpu:
    """GPU number `index`; `changes` are members of SimulatedGpu or readings."""
    own = {
        "uuid": f"GPU-{index:08x}-1111-2222-3333-444455556666",
        "bus_id": f"00000000:{0x19 + 8 * index:02x}:00.0",
        "serial": f"165000000000{index}",
        "nvml_index": index,
    }
    members = {name: changes.pop(name) for name in SimulatedGpu.__dataclass_fields__ if name in changes}
    return replace(SimulatedGpu(readings={**READINGS, **own, **changes}), **members)


def make_machine(*gpus: SimulatedGpu, **changes: Any) -> Scenario:
    """A machine with these GPUs (one healthy one if there are none); `changes` are members of Scenario."""
    machine = Scenario(
        name="test-machine",
        hostname="test-1",
        description="a machine of the tests",
        nvml=SimulatedNvml(
            driver_version="580.105.08", nvml_version="13.580.105.08", cuda_driver_version="13.0"
        ),
        gpus=gpus or (make_gpu(),),
        host=HostTree(),
        torch={"absent": True},
    )
    return replace(machine, **changes)


def start(session: Session, *command: str, **environment: str) -> subprocess.Popen[str]:
    """A program on the machine, its output in pipes."""
    return subprocess.Popen(
        command,
        env={**session.environment, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(session: Session, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A program on the machine, run to its end."""
    with start(session, *command, **environment) as program:
        try:
            out, err = program.communicate(timeout=TIME_LIMIT_SECONDS)
        finally:
            program.kill()
    return subprocess.CompletedProcess(command, program.returncode, out, err)


# `N` is pynvml, `gpu(i)` a handle, `code(call, *arguments)` the return code of a call that fails, or 0.
_PRELUDE = """
import json
import pynvml as N

def gpu(index=0):
    return N.nvmlDeviceGetHandleByIndex(index)

def code(call, *arguments, **named):
    try:
        call(*arguments, **named)
    except N.NVMLError as error:
        return error.value
    return 0
"""


def ask(session: Session, expression: str, *, init: bool = True, **environment: str) -> Any:
    """The value of a Python expression with pynvml on the machine."""
    lines = [_PRELUDE, "N.nvmlInit()" if init else "", f"print(json.dumps({expression}))"]
    done = run(session, sys.executable, "-c", "\n".join(lines), **environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def run_script(session: Session, script: Path, *arguments: str) -> Any:
    """What a script of the tests prints on the machine, as JSON."""
    done = run(session, sys.executable, str(script), *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
