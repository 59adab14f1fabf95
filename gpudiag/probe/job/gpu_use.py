"""What NVML shows of the GPUs that a job's ranks use, twice, in a guarded child; which rank uses which GPU.

The child asks at the same time as the looks, for both together must take no longer than the looks. GPM's
activities and NVLink's traffic are what happened between the two; where a driver refuses them, the rest still
counts.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from time import monotonic, sleep
from typing import Any

from gpudiag.linux.proc import read_status
from gpudiag.model.job import GpuLook, Job, RankSeen
from gpudiag.model.reading import Missing, MissingReason, Reading
from gpudiag.probe.guard import GuardedChild, collect, start_guarded
from gpudiag.probe.nvml.ask import Ask, DeviceSheet, as_text
from gpudiag.probe.nvml.device import plan_of, read_plan
from gpudiag.probe.nvml.library import load_pynvml
from gpudiag.probe.nvml.memory import read_processes, shares_of_processes
from gpudiag.probe.start import SIMULATED

_MOMENTS = 2
_APART_SECONDS = 1.0
_LATE_SECONDS = 4.0
_CONTROL = "/dev/nvidiactl"
_ASKED = plan_of(
    "utilization_percent",
    "power_draw_watts",
    "power_limit_enforced_watts",
    "sm_clock_mhz",
    "sm_activity_percent",
    "tensor_activity_percent",
    "dram_activity_percent",
    "pcie_transmitted_bytes_per_second",
    "pcie_received_bytes_per_second",
    "nvlink_transmitted_bytes_per_second",
    "nvlink_received_bytes_per_second",
)


class _RepeatedAsk(Ask):
    """Questions that are asked again, so that what happened in between can be measured."""

    repeated = True


def start_gpu_use() -> GuardedChild | None:
    """A child that asks NVML twice; None where this machine has no NVIDIA driver."""
    if not os.path.exists(_CONTROL) and not os.environ.get(SIMULATED):
        return None
    return start_guarded("gpudiag.probe.job.gpu_use:stream_gpu_use", _MOMENTS, _APART_SECONDS)


def stream_gpu_use(emit: Callable[[Any], None], moments: int, apart_seconds: float) -> None:
    """Send ("gpu", MOMENT, INDEX, AT, SHEET) of each GPU; what cannot be asked is not sent."""
    pynvml = load_pynvml()
    pynvml.nvmlInit()
    asks = [
        _RepeatedAsk(pynvml, pynvml.nvmlDeviceGetHandleByIndex(n)) for n in range(pynvml.nvmlDeviceGetCount())
    ]
    began = monotonic()
    for moment in range(moments):
        sleep(max(0.0, moment * apart_seconds - (monotonic() - began)))
        for index, ask in enumerate(asks):
            sheet = DeviceSheet()
            sheet.read("uuid", _uuid, ask)
            sheet.read("minor", ask, "nvmlDeviceGetMinorNumber")
            read_plan(ask, sheet, _ASKED)
            read_processes(ask, sheet)
            sheet.read("busy", shares_of_processes, ask, 0)
            emit(("gpu", moment, index, monotonic() - began, sheet.document()))


def _uuid(ask: Ask) -> str:
    return as_text(lambda: ask("nvmlDeviceGetUUID"))


def add_gpu_looks(jobs: Sequence[Job], child: GuardedChild | None) -> tuple[Job, ...]:
    """The jobs with what the child read of each rank's GPU; as they are where it read nothing."""
    if child is None:
        return tuple(jobs)
    collect([(child, child.started_at + _LATE_SECONDS)])
    sheets: dict[int, dict[int, tuple[float, Mapping[str, Any]]]] = {}
    for kind, *rest in child.messages:
        if kind == "gpu":
            moment, index, at_seconds, sheet = rest
            sheets.setdefault(index, {})[moment] = (at_seconds, sheet)
    return tuple(
        replace(
            job, ranks=tuple(with_gpu_looks(rank, sheets.values(), _pids_of(rank.pid)) for rank in job.ranks)
        )
        for job in jobs
    )


def with_gpu_looks(
    rank: RankSeen,
    gpus: Iterable[Mapping[int, tuple[float, Mapping[str, Any]]]],
    pids: frozenset[int],
) -> RankSeen:
    """The rank with the looks at its GPU: the one that lists its process, or the only one that it has open.

    `gpus` are the sheets of each GPU by moment; a rank on several GPUs, or on none that is known, gets no
    looks.
    """
    listed = list(gpus)
    own = [
        one
        for one in listed
        if any(process["pid"] in pids for _, sheet in one.values() for process in sheet.get("processes", ()))
    ] or [one for one in listed if _is_only_open(one, rank)]
    if len(own) != 1:
        return rank
    looks = tuple(_look(at, sheet, pids) for _, (at, sheet) in sorted(own[0].items()))
    return replace(rank, gpu_looks=looks)


def _is_only_open(gpu: Mapping[int, tuple[float, Mapping[str, Any]]], rank: RankSeen) -> bool:
    """Whether the rank has this GPU's device open, and no other's."""
    nodes = [node for node in rank.gpus if node.rpartition("/")[2].removeprefix("nvidia").isdecimal()]
    minors = {sheet.get("minor") for _, sheet in gpu.values()}
    return len(nodes) == 1 and nodes[0].removeprefix("/dev/nvidia") in {str(minor) for minor in minors}


def _pids_of(pid: int) -> frozenset[int]:
    """The numbers of a process in this process namespace and in those within it."""
    with suppress(OSError):
        return frozenset((pid, *map(int, read_status(pid).get("NSpid", "").split())))
    return frozenset((pid,))


def _look(at_seconds: float, sheet: Mapping[str, Any], pids: frozenset[int]) -> GpuLook:
    busy = sheet.get("busy")
    return GpuLook(
        round(at_seconds, 3),
        str(sheet.get("uuid", "")),
        utilization_percent=_reading(sheet, "utilization_percent"),
        process_utilization_percent=_absent()
        if busy is None
        else sum(share for pid, share in busy if pid in pids),
        processes=len(sheet["processes"]) if "processes" in sheet else _absent(),
        power_draw_watts=_reading(sheet, "power_draw_watts"),
        power_limit_watts=_reading(sheet, "power_limit_enforced_watts"),
        sm_clock_mhz=_reading(sheet, "sm_clock_mhz"),
        sm_activity_percent=_reading(sheet, "sm_activity_percent"),
        tensor_activity_percent=_reading(sheet, "tensor_activity_percent"),
        memory_activity_percent=_reading(sheet, "dram_activity_percent"),
        pcie_bytes_per_second=_sum(
            sheet, "pcie_transmitted_bytes_per_second", "pcie_received_bytes_per_second"
        ),
        nvlink_bytes_per_second=_sum(
            sheet, "nvlink_transmitted_bytes_per_second", "nvlink_received_bytes_per_second"
        ),
    )


def _reading(sheet: Mapping[str, Any], name: str) -> Any:
    value = sheet.get(name)
    if value is not None:
        return value
    missing = sheet.get("missing", {}).get(name)
    return Missing(MissingReason(missing)) if missing else _absent()


def _sum(sheet: Mapping[str, Any], *names: str) -> Reading[float]:
    values = [_reading(sheet, name) for name in names]
    absent = [value for value in values if isinstance(value, Missing)]
    return absent[0] if absent else float(sum(values))


def _absent() -> Missing:
    return Missing(MissingReason.SOURCE_ABSENT)
