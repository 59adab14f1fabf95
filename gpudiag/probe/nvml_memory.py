"""A GPU's memory: how much of it is in use, and how reliable it is."""

from __future__ import annotations

from gpudiag.probe.nvml_ask import Ask, DeviceSheet, known
from gpudiag.probe.nvml_errors import INVALID_ARGUMENT, reason_of
from gpudiag.probe.sheet import FUNCTION_NOT_FOUND, NOT_SUPPORTED, Absent, Sheet

_CORRECTED, _UNCORRECTED = 0, 1  # nvmlMemoryErrorType_t
_VOLATILE, _AGGREGATE = 0, 1  # nvmlEccCounterType_t
# nvmlMemoryLocation_t; 5 (texture_shm) counts what 4 counts.
_LOCATIONS = (
    ("l1_cache", 0), ("l2_cache", 1), ("dram", 2), ("register_file", 3), ("texture_memory", 4), ("cbu", 6),
    ("sram", 7),
)  # fmt: skip
_COUNTERS = (
    ("corrected_volatile", _CORRECTED, _VOLATILE),
    ("uncorrected_volatile", _UNCORRECTED, _VOLATILE),
    ("corrected_aggregate", _CORRECTED, _AGGREGATE),
    ("uncorrected_aggregate", _UNCORRECTED, _AGGREGATE),
)
_RETIRED_SINGLE_BIT, _RETIRED_DOUBLE_BIT = 29, 30  # NVML_FI_DEV_RETIRED_*
_MEMORY_FIELDS = ("memory_total_bytes", "memory_used_bytes", "memory_free_bytes", "memory_reserved_bytes")


def read_memory(ask: Ask, sheet: DeviceSheet) -> None:
    """Fill in how much memory there is, used, free and reserved, and whether it is the GPU's own."""
    sheet.read_together(_MEMORY_FIELDS, _memory, ask)
    if "memory_total_bytes" not in sheet.values:
        sheet.mark("memory_kind", *sheet.missing["memory_total_bytes"])
        return
    sheet.values["memory_kind"] = "dedicated"
    if sheet.values["memory_reserved_bytes"] is None:
        del sheet.values["memory_reserved_bytes"]
        sheet.mark("memory_reserved_bytes", FUNCTION_NOT_FOUND, "the driver counts it as used")


def _memory(ask: Ask) -> tuple[int, int, int, int | None]:
    """Bytes: total, used, free and reserved; reserved is None where the driver counts it as used."""
    memory, reserved = ask.first_of(lambda: _memory_v2(ask), lambda: (ask("nvmlDeviceGetMemoryInfo"), None))
    if memory.total == 0:
        raise Absent(NOT_SUPPORTED, "NVML answers a total of 0")
    return memory.total, memory.used, memory.free, reserved


def _memory_v2(ask: Ask) -> tuple[object, int]:
    memory = ask("nvmlDeviceGetMemoryInfo", version=ask.pynvml.nvmlMemory_v2)
    return memory, memory.reserved


def read_ecc_locations(ask: Ask, sheet: DeviceSheet) -> None:
    """Fill in the ECC counts by place; the totals have been asked for."""
    sheet.read("ecc_locations", _ecc_locations, ask, sheet)


def read_row_remap_histogram(ask: Ask, sheet: DeviceSheet) -> None:
    """Fill in how many banks have how many spare rows left."""
    sheet.read("row_remap_histogram", _row_remap_histogram, ask)


def read_retired_pages(ask: Ask, sheet: DeviceSheet) -> None:
    """Fill in how many pages were retired, by cause (nvmlPageRetirementCause_t)."""
    sheet.read("retired_pages_corrected", _retired_pages, ask, _RETIRED_SINGLE_BIT, 0)
    sheet.read("retired_pages_uncorrected", _retired_pages, ask, _RETIRED_DOUBLE_BIT, 1)


def _ecc_locations(ask: Ask, sheet: DeviceSheet) -> list[dict[str, object]]:
    """The counts of each place in the GPU that has any.

    Raises:
        Absent: ECC is off or not there, so that nothing is counted.
    """
    if "ecc_corrected_volatile" in sheet.missing:
        raise Absent(*sheet.missing["ecc_corrected_volatile"])
    locations = []
    for location, number in _LOCATIONS:
        counts = Sheet(reason_of)
        counts.values["location"] = location
        for name, error, counter in _COUNTERS:
            counts.read(name, _location_count, ask, error, counter, number)
        if len(counts.values) > 1:
            locations.append(counts.document())
    if not locations:
        raise Absent(NOT_SUPPORTED, "NVML counts ECC errors in total only")
    return locations


def _location_count(ask: Ask, error: int, counter: int, location: int) -> int:
    """The count of one place; a driver that does not know the place refuses the argument."""
    name = "nvmlDeviceGetMemoryErrorCounter"
    return known(ask.allowing((INVALID_ARGUMENT,), name, error, counter, location))


def _row_remap_histogram(ask: Ask) -> dict[str, int]:
    histogram = ask("nvmlDeviceGetRowRemapperHistogram")
    return {f"{name}_banks": getattr(histogram, name) for name in ("max", "high", "partial", "low", "none")}


def _retired_pages(ask: Ask, field_id: int, cause: int) -> int:
    try:
        return known(int(ask.field(field_id)))
    except Absent:
        return len(ask("nvmlDeviceGetRetiredPages", cause))
