"""What people call a reading, and why there is none: the words of every text, in place of names of fields.

A document has the field (`retired_pages_corrected`) and the reason (`not_supported`); a sentence has these words.
"""

from __future__ import annotations

from gpudiag.model.device import SourceState
from gpudiag.model.reading import Missing, MissingReason

WHY_MISSING = {
    MissingReason.NOT_SUPPORTED: "this hardware does not report it",
    MissingReason.FUNCTION_NOT_FOUND: "the driver is too old to report it",
    MissingReason.NO_PERMISSION: "no permission to read it",
    MissingReason.DEVICE_LOST: "the GPU is lost",
    MissingReason.RESET_REQUIRED: "the GPU must be reset first",
    MissingReason.SOURCE_ABSENT: "nothing on this machine reports it",
    MissingReason.TIMED_OUT: "no answer by the deadline",
    MissingReason.ATTACHING: "the driver is still attaching the GPU",
    MissingReason.NOT_ASKED: "it was not asked for",
    MissingReason.ERROR: "reading it failed",
}

# Names whose own words would not be clear to a reader.
_NAMES = {
    "id": "identity",
    "responding": "an answer to any question",
    "name": "product name",
    "pci_subsystem_id": "PCI subsystem",
    "gsp_firmware_mode": "whether GSP firmware runs",
    "gsp_firmware_mode_default": "whether GSP firmware runs by default",
    "inforom_valid": "whether the InfoROM is valid",
    "memory_kind": "kind of memory",
    "memory_bus_width_bits": "width of the memory bus",
    "memory_utilization_percent": "load of the memory controller",
    "utilization_percent": "load",
    "pstate": "performance state",
    "clocks_event_reasons": "what holds the clocks back",
    "throttle_seconds": "how long the clocks were held back",
    "temperature_margin_celsius": "margin below the temperature limit",
    "temperature_margin_slowdown_celsius": "margin at which the GPU slows down",
    "temperature_slowdown_celsius": "temperature at which the GPU slows down",
    "temperature_shutdown_celsius": "temperature at which the GPU shuts down",
    "temperature_gpu_max_celsius": "highest temperature for the GPU",
    "temperature_memory_max_celsius": "highest temperature for its memory",
    "power_limit_enforced_watts": "enforced power limit",
    "power_limit_default_watts": "default power limit",
    "power_limit_min_watts": "lowest power limit",
    "power_limit_max_watts": "highest power limit",
    "graphics_clock_application_mhz": "graphics clock for applications",
    "memory_clock_application_mhz": "memory clock for applications",
    "graphics_clock_application_default_mhz": "default graphics clock for applications",
    "memory_clock_application_default_mhz": "default memory clock for applications",
    "ecc_mode_pending": "ECC mode after the next reset",
    "ecc_uncorrected_volatile": "uncorrected ECC errors since the driver was loaded",
    "ecc_uncorrected_aggregate": "uncorrected ECC errors in the GPU's life",
    "ecc_corrected_volatile": "corrected ECC errors since the driver was loaded",
    "ecc_corrected_aggregate": "corrected ECC errors in the GPU's life",
    "ecc_locations": "where ECC errors were counted",
    "ecc_sram_threshold_exceeded": "whether SRAM errors passed their threshold",
    "row_remap_uncorrectable": "rows remapped for uncorrectable errors",
    "row_remap_correctable": "rows remapped for correctable errors",
    "row_remap_pending": "whether a remapped row waits for a reset",
    "row_remap_failed": "whether remapping a row failed",
    "row_remap_histogram": "spare rows that are left",
    "retired_pages_uncorrected": "pages retired for double-bit errors",
    "retired_pages_corrected": "pages retired for single-bit errors",
    "page_retirement_pending": "whether a page waits to be retired",
    "memory_unrepairable": "whether the memory cannot be repaired",
    "memory_channel_repair_pending": "whether a memory channel waits for repair",
    "tpc_repair_pending": "whether a TPC waits for repair",
    "pcie_generation": "PCIe generation in use",
    "pcie_generation_gpu_max": "highest PCIe generation of the GPU",
    "pcie_generation_slot_max": "highest PCIe generation of the slot",
    "pcie_width": "PCIe lanes in use",
    "pcie_width_gpu_max": "PCIe lanes of the GPU",
    "pcie_width_slot_max": "PCIe lanes of the slot",
    "pcie_replay_count": "PCIe replays",
    "numa_node": "NUMA node",
    "nvlinks": "NVLinks",
    "nvlink_bytes_per_second": "speed of an NVLink",
    "fabric": "registration with the NVLink fabric",
    "peers": "which other GPUs it reaches",
    "mig_mode_pending": "MIG mode after the next reset",
    "recovery_action": "what the driver wants done",
    "processes": "who uses it",
    # What sources may disagree about, beside a GPU's own readings.
    "count": "number of GPUs",
    "order": "order of the GPUs",
    "context_starts": "whether a CUDA context starts",
}
_UNITS = ("_bytes_per_second", "_bytes", "_celsius", "_watts", "_mhz", "_percent", "_seconds", "_bits")
_SPELLED = {
    "ecc": "ECC", "gpu": "GPU", "gsp": "GSP", "inforom": "InfoROM", "cuda": "CUDA", "mig": "MIG", "nvlink": "NVLink",
    "numa": "NUMA", "pcie": "PCIe", "pci": "PCI", "sm": "SM", "uuid": "UUID", "vbios": "VBIOS", "nvml": "NVML",
}  # fmt: skip


def name_reading(field: str) -> str:
    """What people call the reading of that field: `SM clock`, `pages retired for single-bit errors`."""
    if field in _NAMES:
        return _NAMES[field]
    for unit in _UNITS:
        if field.endswith(unit):
            field = field.removesuffix(unit)
            break
    return " ".join(_SPELLED.get(word, word) for word in field.split("_"))


def describe_missing(missing: Missing) -> str:
    """Why a value is not there, in words; the source's own words follow where there are any."""
    words = WHY_MISSING[missing.reason]
    return f"{words} ({missing.detail})" if missing.detail else words


def explain_missing(missing: Missing) -> str:
    """Why a value is not there: the source's own words, or ours where it gave none."""
    return missing.detail or WHY_MISSING[missing.reason]


_STATES = {
    SourceState.OK: "ok",
    SourceState.NO_DEVICES: "no GPU",
    SourceState.LIBRARY_ABSENT: "not installed",
    SourceState.DRIVER_NOT_LOADED: "no driver",
    SourceState.VERSION_MISMATCH: "wrong version",
    SourceState.NO_PERMISSION: "no permission",
    SourceState.TIMED_OUT: "no answer",
    SourceState.FAILED: "failed",
    SourceState.NOT_ASKED: "not asked",
}


def name_state(state: SourceState) -> str:
    """How a source answered, in a word or two."""
    return _STATES[state]
