"""A GPU's memory, its MIG instances, and the processes that hold memory on it."""

from __future__ import annotations

from functools import partial
from typing import Any

from gpudiag.probe.nvml.ask import (
    INVALID_ARGUMENT,
    NOT_AVAILABLE,
    Ask,
    DeviceSheet,
    code_of,
    known,
    reason_of,
)
from gpudiag.probe.sheet import FUNCTION_NOT_FOUND, NOT_SUPPORTED, Absent, Sheet

# nvmlMemoryLocation_t; 5 (texture_shm) counts what 4 counts.
_LOCATIONS = (
    ("l1_cache", 0),
    ("l2_cache", 1),
    ("dram", 2),
    ("register_file", 3),
    ("texture_memory", 4),
    ("cbu", 6),
    ("sram", 7),
)
_MEMORY_FIELDS = ("memory_total_bytes", "memory_used_bytes", "memory_free_bytes", "memory_reserved_bytes")

_RECENT_MICROSECONDS = 2_000_000
_WHOLE_PERCENT = 100
# Of nvmlReturn_t, without those that report the GPU as gone.
_REFUSALS = [code for code in range(1000) if code not in (15, 16, 28)]

_NO_INSTANCE = (6, 2)  # nvmlReturn_t, not found and invalid argument: no instance at this index

# Each kind of process and the function that lists it; a process in several lists is of the first one's kind.
_LISTS = (
    ("compute", "nvmlDeviceGetComputeRunningProcesses"),
    ("graphics", "nvmlDeviceGetGraphicsRunningProcesses"),
    ("mps", "nvmlDeviceGetMPSComputeRunningProcesses"),
)

_IS_NO_PLACE = (
    2  # counters that the driver refuses, where no driver yet had one: errors are not counted there
)
_CORRECTED, _UNCORRECTED = 0, 1  # nvmlMemoryErrorType_t
_VOLATILE, _AGGREGATE = 0, 1  # nvmlEccCounterType_t
_COUNTERS = (
    ("corrected_volatile", _CORRECTED, _VOLATILE),
    ("uncorrected_volatile", _UNCORRECTED, _VOLATILE),
    ("corrected_aggregate", _CORRECTED, _AGGREGATE),
    ("uncorrected_aggregate", _UNCORRECTED, _AGGREGATE),
)
_REMAPPED = ("correctable", "uncorrectable", "pending", "failed")
_RETIRED_SINGLE_BIT, _RETIRED_DOUBLE_BIT = 29, 30  # NVML_FI_DEV_RETIRED_*


def read_memory(ask: Ask, sheet: DeviceSheet) -> None:
    """Fill in how much memory there is, used, free and reserved, and whether it is the GPU's own."""
    sheet.read_together(_MEMORY_FIELDS, _memory, ask)
    if "memory_total_bytes" not in sheet.values:
        sheet.mark("memory_kind", *sheet.missing["memory_total_bytes"])
        return
    sheet.values["memory_kind"] = "dedicated"
    _drop_impossible_parts(sheet, _MEMORY_FIELDS)
    if "memory_reserved_bytes" not in sheet.values:
        return
    if sheet.values["memory_reserved_bytes"] is None:
        del sheet.values["memory_reserved_bytes"]
        sheet.mark("memory_reserved_bytes", FUNCTION_NOT_FOUND, "the driver counts it as used")


def _drop_impossible_parts(sheet: Sheet, fields: tuple[str, ...]) -> None:
    """Replace each part of the memory (any field but the first) that exceeds the whole by the reason."""
    total = sheet.values[fields[0]]
    for name in fields[1:]:
        amount = sheet.values[name]
        if amount is not None and not 0 <= amount <= total:
            del sheet.values[name]
            sheet.mark(
                name, NOT_SUPPORTED, f"NVML answers {amount} bytes of {total}: a part is more than the whole"
            )


def _memory(ask: Ask) -> tuple[int, int, int, int | None]:
    """Bytes: total, used, free and reserved; reserved is None where the driver counts it as used."""
    memory, reserved = ask.first_of(lambda: _memory_v2(ask), lambda: (ask("nvmlDeviceGetMemoryInfo"), None))
    if memory.total == 0 or memory.total in NOT_AVAILABLE:
        raise Absent(NOT_SUPPORTED, f"NVML answers a total of {memory.total}")
    return memory.total, memory.used, memory.free, reserved


def _memory_v2(ask: Ask) -> tuple[object, int]:
    memory = ask("nvmlDeviceGetMemoryInfo", version=ask.pynvml.nvmlMemory_v2)
    return memory, memory.reserved


def read_ecc_locations(ask: Ask, sheet: DeviceSheet) -> None:
    """Fill in the ECC counts by place; the totals must have been read before."""
    counted = [sheet.values.get(f"ecc_{name}") for name, _, _ in _COUNTERS]
    sheet.read("ecc_locations", ask.while_same, "ecc locations", counted, lambda: _ecc_locations(ask, sheet))


def read_row_remap_histogram(ask: Ask, sheet: DeviceSheet) -> None:
    """Fill in how many banks have how many spare rows left."""
    remapped = [sheet.values.get(f"row_remap_{name}") for name in _REMAPPED]
    sheet.read(
        "row_remap_histogram",
        ask.while_same,
        "row remap histogram",
        remapped,
        lambda: _row_remap_histogram(ask),
    )


def read_retired_pages(ask: Ask, sheet: DeviceSheet) -> None:
    """Fill in how many pages were retired, by cause (nvmlPageRetirementCause_t)."""
    sheet.read("retired_pages_corrected", _retired_pages, ask, _RETIRED_SINGLE_BIT, 0)
    sheet.read("retired_pages_uncorrected", _retired_pages, ask, _RETIRED_DOUBLE_BIT, 1)


def _ecc_locations(ask: Ask, sheet: DeviceSheet) -> list[dict[str, object]]:
    """The counts of each place in the GPU that has any. Raises Absent: ECC is off or not there."""
    if "ecc_corrected_volatile" in sheet.missing:
        raise Absent(*sheet.missing["ecc_corrected_volatile"])
    locations = []
    for location, number in _LOCATIONS:
        counts = Sheet(reason_of)
        counts.values["location"] = location
        for name, error, counter in _COUNTERS:
            counts.read(name, _location_count, ask, error, counter, number)
            if len(counts.missing) == _IS_NO_PLACE:
                break
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


def read_instances(ask: Ask, sheet: DeviceSheet) -> None:
    """Fill in the MIG instances, an empty list where MIG is off; the mode must have been read before."""
    sheet.read("mig_instances", _instances, ask, sheet)


def _instances(ask: Ask, sheet: DeviceSheet) -> list[dict[str, object]]:
    if "mig_mode" in sheet.missing:
        raise Absent(*sheet.missing["mig_mode"])
    if sheet.values["mig_mode"] == "disabled":
        return []
    found = (_handle(ask, index) for index in range(ask("nvmlDeviceGetMaxMigDeviceCount")))
    return [_instance(ask.on(handle)) for handle in found if handle is not None]


def _handle(ask: Ask, index: int) -> object | None:
    """The handle at one index; None for a gap, as indices are sparse."""
    try:
        handle: object = ask.allowing(_NO_INSTANCE, "nvmlDeviceGetMigDeviceHandleByIndex", index)
    except Exception as error:
        if code_of(error) in _NO_INSTANCE:
            return None
        raise
    return handle


def _instance(ask: Ask) -> dict[str, object]:
    sheet = Sheet(reason_of)
    sheet.read("uuid", ask.text, "nvmlDeviceGetUUID")
    sheet.read("name", ask.text, "nvmlDeviceGetName")
    sheet.read("gpu_instance_id", ask.number, "nvmlDeviceGetGpuInstanceId")
    sheet.read("compute_instance_id", ask.number, "nvmlDeviceGetComputeInstanceId")
    sheet.read_together(_MEMORY_FIELDS[:3], _instance_memory, ask)
    if _MEMORY_FIELDS[0] in sheet.values:
        _drop_impossible_parts(sheet, _MEMORY_FIELDS[:3])
    return sheet.document()


def _instance_memory(ask: Ask) -> tuple[int, int, int]:
    memory = ask("nvmlDeviceGetMemoryInfo")
    return memory.total, memory.used, memory.free


def read_processes(ask: Ask, sheet: DeviceSheet) -> None:
    """Fill in the processes, each with its pid, kind, memory and MIG instance."""
    sheet.read("processes", _processes, ask)


def _processes(ask: Ask) -> list[dict[str, Any]]:
    """One entry per process and GPU instance, by pid. Raises Absent: a list of this GPU could not be read."""
    found: dict[tuple[int, object], dict[str, Any]] = {}
    impossible: list[int] = []
    reasons = []
    for kind, function in _LISTS:
        try:
            listed = ask.first_of(partial(ask, f"{function}_v3"), partial(ask, f"{function}_v2"))
        except Exception as error:  # noqa: BLE001 - reason_of judges it
            reasons.append(reason_of(error))
            continue
        for process in listed:
            if process.pid == 0 or process.pid in NOT_AVAILABLE:
                impossible.append(process.pid)
                continue
            found.setdefault((process.pid, getattr(process, "gpuInstanceId", None)), _process(process, kind))
    failed = [reason for reason in reasons if reason[0] not in (NOT_SUPPORTED, FUNCTION_NOT_FOUND)]
    if failed or len(reasons) == len(_LISTS):
        raise Absent(*(failed or reasons)[0])
    if impossible and not found:
        pids = ", ".join(str(pid) for pid in sorted(set(impossible)))
        raise Absent(NOT_SUPPORTED, f"NVML lists processes with numbers that no process has ({pids})")
    return sorted(found.values(), key=lambda process: process["pid"])


def shares_of_processes(ask: Ask, since_microseconds: int) -> list[list[int]]:
    """Each process's share of the SMs in the newest second since that Unix time, as [pid, per cent], if any.

    Raises:
        pynvml.NVMLError: not found, where no process has worked since then; not supported, as with MIG.
    """
    # A share that is refused is no fault of the GPU.
    samples = ask.allowing(_REFUSALS, "nvmlDeviceGetProcessUtilization", since_microseconds)
    newest = max((one.timeStamp for one in samples), default=0)
    # Old samples, and more than everything, are what drivers have given by mistake (Syllo/nvtop#110).
    recent = [one for one in samples if newest - one.timeStamp < _RECENT_MICROSECONDS]
    return [[one.pid, one.smUtil] for one in recent if one.smUtil <= _WHOLE_PERCENT]


def _process(process: Any, kind: str) -> dict[str, Any]:
    sheet = Sheet(reason_of)
    sheet.values.update(pid=process.pid, kind=kind)
    sheet.read("memory_used_bytes", _available, process, "usedGpuMemory")
    sheet.read("gpu_instance_id", _available, process, "gpuInstanceId")
    sheet.read("compute_instance_id", _available, process, "computeInstanceId")
    return sheet.document()


def _available(process: Any, member: str) -> int:
    value = getattr(process, member, None)
    if value is None or value in NOT_AVAILABLE:
        raise Absent(NOT_SUPPORTED, "NVML does not report it")
    return int(value)
