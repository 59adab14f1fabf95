"""A GPU's MIG instances: devices of their own with a UUID and memory."""

from __future__ import annotations

from gpudiag.probe.nvml_ask import Ask, DeviceSheet
from gpudiag.probe.nvml_errors import code_of, reason_of
from gpudiag.probe.sheet import Absent, Sheet

_NO_INSTANCE = (6, 2)  # nvmlReturn_t, not found and invalid argument: no instance at this index


def read_instances(ask: Ask, sheet: DeviceSheet) -> None:
    """Fill in the MIG instances, once the mode is known; a GPU whose mode is off has an empty list of them."""
    sheet.read("mig_instances", _instances, ask, sheet)


def _instances(ask: Ask, sheet: DeviceSheet) -> list[dict[str, object]]:
    if "mig_mode" in sheet.missing:
        raise Absent(*sheet.missing["mig_mode"])
    if sheet.values["mig_mode"] == "disabled":
        return []
    found = (_handle(ask, index) for index in range(ask("nvmlDeviceGetMaxMigDeviceCount")))
    return [_instance(ask.on(handle)) for handle in found if handle is not None]


def _handle(ask: Ask, index: int) -> object | None:
    """The handle at one index; None for a gap, for indices are sparse."""
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
    sheet.read_together(("memory_total_bytes", "memory_used_bytes", "memory_free_bytes"), _memory, ask)
    return sheet.document()


def _memory(ask: Ask) -> tuple[int, int, int]:
    memory = ask("nvmlDeviceGetMemoryInfo")
    return memory.total, memory.used, memory.free
