"""The processes that hold memory on a GPU, as NVML lists them; /proc describes them later."""

from __future__ import annotations

from functools import partial

from gpudiag.probe.nvml_ask import NOT_AVAILABLE, Ask, DeviceSheet
from gpudiag.probe.nvml_errors import reason_of
from gpudiag.probe.sheet import FUNCTION_NOT_FOUND, NOT_SUPPORTED, Absent, Sheet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# What a process is, and the function that lists such; a process in several lists is what the first says.
_LISTS = (
    ("compute", "nvmlDeviceGetComputeRunningProcesses"),
    ("graphics", "nvmlDeviceGetGraphicsRunningProcesses"),
    ("mps", "nvmlDeviceGetMPSComputeRunningProcesses"),
)


def read_processes(ask: Ask, sheet: DeviceSheet) -> None:
    """Fill in the processes, each with its pid, kind, memory and MIG instance."""
    sheet.read("processes", _processes, ask)


def _processes(ask: Ask) -> list[dict[str, Any]]:
    """One entry a process and GPU instance, by pid.

    Raises:
        Absent: a list that this GPU keeps could not be had; no list then means no answer, never nobody.
    """
    found: dict[tuple[int, object], dict[str, Any]] = {}
    reasons = []
    for kind, function in _LISTS:
        try:
            listed = ask.first_of(partial(ask, f"{function}_v3"), partial(ask, f"{function}_v2"))
        except Exception as error:  # noqa: BLE001 - the gate judges it
            reasons.append(reason_of(error))
            continue
        for process in listed:
            found.setdefault((process.pid, getattr(process, "gpuInstanceId", None)), _process(process, kind))
    failed = [reason for reason in reasons if reason[0] not in (NOT_SUPPORTED, FUNCTION_NOT_FOUND)]
    if failed or len(reasons) == len(_LISTS):
        raise Absent(*(failed or reasons)[0])
    return sorted(found.values(), key=lambda process: process["pid"])


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
        raise Absent(NOT_SUPPORTED, "NVML does not say")
    return int(value)
