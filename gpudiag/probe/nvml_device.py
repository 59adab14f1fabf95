"""Every reading of one GPU through NVML: who it is, how it is set, and what it is doing.

The order is the one that serves a GPU that hangs half way: identity first, then what decides whether
it can be used, the long lists last.
"""

from __future__ import annotations

from gpudiag.probe.nvml_ask import Ask, DeviceSheet, bus_id_of, enable_state, word
from gpudiag.probe.nvml_details import DETAIL_FIELDS, read_details
from gpudiag.probe.nvml_links import read_links
from gpudiag.probe.nvml_load import read_load
from gpudiag.probe.nvml_memory import read_memory, read_reliability
from gpudiag.probe.nvml_mig import read_mig
from gpudiag.probe.nvml_processes import read_processes
from gpudiag.probe.sheet import NOT_SUPPORTED, Absent

# NVML_FI_DEV_*: one call answers all of them; each carries its own return code.
MEMORY_TEMPERATURE = 82
ECC_TOTALS = (3, 4, 5, 6)  # corrected and uncorrected volatile, corrected and uncorrected aggregate
RETIRED_PAGES = (29, 30, 31)  # single-bit, double-bit, pending
NVLINK_COUNT = 91
POWER_INSTANT = 186
RECOVERY_ACTION = 230
BATCH = (
    *ECC_TOTALS, *RETIRED_PAGES, MEMORY_TEMPERATURE, NVLINK_COUNT, POWER_INSTANT, RECOVERY_ACTION,
    *DETAIL_FIELDS,
)  # fmt: skip

# nvmlDeviceArchitecture_t; 11, 12 and 15 are not GPUs that NVML lists as such.
_ARCHITECTURES = (
    None, None, "kepler", "maxwell", "pascal", "volta", "turing", "ampere", "ada", "hopper", "blackwell",
    None, None, "rubin",
)  # fmt: skip
_COMPUTE_MODES = ("default", "exclusive_thread", "prohibited", "exclusive_process")  # nvmlComputeMode_t
# nvmlDeviceGpuRecoveryAction_t
_RECOVERY_ACTIONS = (
    "none", "gpu_reset", "node_reboot", "drain_p2p", "drain_and_reset", "recover_imex_domain", "bus_reset",
    "system_reboot",
)  # fmt: skip


def read_device(ask: Ask, sheet: DeviceSheet) -> None:
    """Fill `sheet` with every reading of model.Device that NVML gives, and the raw list of processes."""
    read_identity(ask, sheet)
    read_state(ask, sheet)


def read_state(ask: Ask, sheet: DeviceSheet) -> None:
    """Fill in everything but the identity: what may change while the driver stays loaded."""
    # On a sheet that nobody looks at: where the batch fails, each field is asked for singly.
    DeviceSheet().read("batch", ask.read_fields, BATCH)
    sheet.read("recovery_action", lambda: word(_RECOVERY_ACTIONS, int(ask.field(RECOVERY_ACTION))))
    read_memory(ask, sheet)
    read_load(ask, sheet)
    _read_modes(ask, sheet)
    read_reliability(ask, sheet)
    read_mig(ask, sheet)
    read_links(ask, sheet)
    read_processes(ask, sheet)
    read_details(ask, sheet)


def read_identity(ask: Ask, sheet: DeviceSheet) -> None:
    """Fill in who the GPU is; UUID and bus id first, for they name the row if nothing else comes."""
    sheet.read("uuid", ask.text, "nvmlDeviceGetUUID")
    sheet.read("bus_id", lambda: bus_id_of(ask("nvmlDeviceGetPciInfo").busId))
    sheet.read("name", ask.text, "nvmlDeviceGetName")
    sheet.read("serial", _serial, ask)
    sheet.read("vbios_version", ask.text, "nvmlDeviceGetVbiosVersion")
    sheet.read("board_part_number", ask.text, "nvmlDeviceGetBoardPartNumber")
    sheet.read("architecture", lambda: word(_ARCHITECTURES, ask("nvmlDeviceGetArchitecture")))
    sheet.read("compute_capability", _compute_capability, ask)


def _read_modes(ask: Ask, sheet: DeviceSheet) -> None:
    sheet.read("persistence_mode", ask.enabled, "nvmlDeviceGetPersistenceMode")
    sheet.read("compute_mode", lambda: word(_COMPUTE_MODES, ask("nvmlDeviceGetComputeMode")))
    sheet.read_together(
        ("ecc_mode", "ecc_mode_pending"),
        lambda: [enable_state(state) for state in ask("nvmlDeviceGetEccMode")],
    )


def _serial(ask: Ask) -> str:
    serial = ask.text("nvmlDeviceGetSerial")
    if serial.strip("0") == "":
        raise Absent(NOT_SUPPORTED, f"NVML answers {serial!r}")
    return serial


def _compute_capability(ask: Ask) -> str:
    major, minor = ask("nvmlDeviceGetCudaComputeCapability")
    return f"{major}.{minor}"
