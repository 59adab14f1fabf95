"""GPUs for the tests of text: busy, idle, lost, with what a table shows of them."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from gpudiag.checks.gpu.availability import Candidate, judge_availability
from gpudiag.checks.runner import findings_worst_first
from gpudiag.model.device import Device, GpuProcess, NvLink, Snapshot
from gpudiag.model.finding import Finding
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.runs.instant import judge_snapshot
from gpudiag.units import GIB
from tests.unit.model.nouns import NOT_SUPPORTED, TAKEN_AT, make_device

LOST = Missing(MissingReason.DEVICE_LOST, "GPU is lost (NVML 15)")
# As many as the model has.
LINKS = tuple(
    NvLink(number, True, NOT_SUPPORTED, NOT_SUPPORTED, NOT_SUPPORTED, NOT_SUPPORTED, NOT_SUPPORTED)
    for number in range(18)
)
LATE = Missing(MissingReason.TIMED_OUT, "nvmlDeviceGetName had not answered after 5 s")


def make_process(pid: int = 4242, command: str = "python train.py --epochs 3") -> GpuProcess:
    started = TAKEN_AT - timedelta(hours=6)
    return GpuProcess(pid, "compute", 60 * GIB, True, "ann", command, NOT_SUPPORTED, started)


def make_idle(nvml_index: int, **changes: Any) -> Device:
    readings: dict[str, Any] = {
        "name": "NVIDIA H100 80GB HBM3",
        "serial": "1650000000000",
        "memory_used_bytes": 0,
        "memory_total_bytes": 85520809984,
        "utilization_percent": 0,
        "temperature_celsius": 29,
        "power_draw_watts": 68.9,
        "power_limit_enforced_watts": 700.0,
        "compute_mode": "default",
        "mig_mode": "disabled",
        "recovery_action": "none",
        "processes": (),
        "nvlinks": LINKS,
    }
    return make_device(nvml_index, **{**readings, **changes})


def make_busy(nvml_index: int) -> Device:
    return make_idle(
        nvml_index,
        memory_used_bytes=int(66.3 * GIB),
        utilization_percent=98,
        temperature_celsius=61,
        power_draw_watts=640.2,
        processes=(make_process(),),
    )


def make_silent(nvml_index: int, why: Missing) -> Device:
    """A GPU of which nothing is known but who it is."""
    identity = make_device(nvml_index).id
    nothing = {name: why for name in Device.__dataclass_fields__ if name != "id"}
    return replace(Device(id=identity, **nothing), name="NVIDIA H100 80GB HBM3")


def judge(snapshot: Snapshot) -> tuple[tuple[Finding, ...], tuple[Candidate, ...]]:
    """What the listing shows beside the readings."""
    findings = findings_worst_first(judge_snapshot(snapshot).results)
    return findings, judge_availability(snapshot, findings)
