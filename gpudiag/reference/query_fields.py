"""Names of fields as `nvidia-smi --query-gpu` has them, and the reading of a GPU that each is.

The names, units and words are those of `nvidia-smi --help-query-gpu` (driver 580, read 2026-11); what has no
name there goes by gpudiag's own, the field of `Device`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpudiag.reference.vocabulary import (
    ACTIONS_IN_NVIDIA_SMI,
    ARCHITECTURES_IN_NVIDIA_SMI,
    BRANDS_IN_NVIDIA_SMI,
    reason_mask,
)
from gpudiag.units import MIB


@dataclass(frozen=True, slots=True)
class QueryField:
    """One field: the reading's name in `Device` or `DeviceId`, its unit, and how its value is written.

    `at_most`: another reading, which is its upper limit where there is one.
    """

    reading: str
    unit: str = ""
    write: Callable[[Any], str] = str
    at_most: str = ""


def _mebibytes(size_bytes: int) -> str:
    """MiB rounded up, as nvidia-smi does: its parts sum to more than the whole."""
    return str(-(-size_bytes // MIB))


def _watts(watts: float) -> str:
    return f"{watts:.2f}"


def _capitals(word: str) -> str:
    return word.replace("_", " ").title()


def _bus_id(bus_id: str) -> str:
    return bus_id.upper()


def _switch(is_on: bool) -> str:
    return "Yes" if is_on else "No"


def _clock(reading: str) -> QueryField:
    return QueryField(reading, "MHz")


FIELDS: dict[str, QueryField] = {
    "index": QueryField("nvml_index"),
    "name": QueryField("name"),
    "uuid": QueryField("uuid"),
    "serial": QueryField("serial"),
    "pci.bus_id": QueryField("bus_id", write=_bus_id),
    "vbios_version": QueryField("vbios_version"),
    "compute_cap": QueryField("compute_capability"),
    "architecture": QueryField(
        "architecture", write=lambda word: ARCHITECTURES_IN_NVIDIA_SMI.get(word, word.title())
    ),
    "brand": QueryField("brand", write=lambda word: BRANDS_IN_NVIDIA_SMI.get(word, word.title())),
    "persistence_mode": QueryField("persistence_mode", write=_capitals),
    "compute_mode": QueryField("compute_mode", write=lambda word: word.title()),
    "mig.mode.current": QueryField("mig_mode", write=_capitals),
    "mig.mode.pending": QueryField("mig_mode_pending", write=_capitals),
    "gpu_recovery_action": QueryField(
        "recovery_action", write=lambda word: ACTIONS_IN_NVIDIA_SMI.get(word, "Unknown")
    ),
    "pstate": QueryField("pstate", write=lambda number: f"P{number}"),
    "clocks_event_reasons.active": QueryField(
        "clocks_event_reasons", write=lambda words: f"0x{reason_mask(words):016x}"
    ),
    "memory.total": QueryField("memory_total_bytes", "MiB", _mebibytes),
    "memory.reserved": QueryField("memory_reserved_bytes", "MiB", _mebibytes),
    "memory.used": QueryField("memory_used_bytes", "MiB", _mebibytes),
    "memory.free": QueryField("memory_free_bytes", "MiB", _mebibytes),
    "utilization.gpu": QueryField("utilization_percent", "%"),
    "utilization.memory": QueryField("memory_utilization_percent", "%"),
    "utilization.encoder": QueryField("encoder_utilization_percent", "%"),
    "utilization.decoder": QueryField("decoder_utilization_percent", "%"),
    "temperature.gpu": QueryField("temperature_celsius"),
    "temperature.gpu.tlimit": QueryField("temperature_margin_celsius"),
    "temperature.memory": QueryField("memory_temperature_celsius"),
    "fan.speed": QueryField("fan_speed_percent", "%"),
    "power.draw": QueryField("power_draw_watts", "W", _watts),
    "power.limit": QueryField("power_limit_watts", "W", _watts),
    "enforced.power.limit": QueryField("power_limit_enforced_watts", "W", _watts),
    "power.default_limit": QueryField("power_limit_default_watts", "W", _watts),
    "power.min_limit": QueryField("power_limit_min_watts", "W", _watts),
    "power.max_limit": QueryField("power_limit_max_watts", "W", _watts),
    "clocks.gr": _clock("graphics_clock_mhz"),
    "clocks.sm": _clock("sm_clock_mhz"),
    "clocks.mem": _clock("memory_clock_mhz"),
    "clocks.video": _clock("video_clock_mhz"),
    "clocks.max.gr": _clock("graphics_clock_max_mhz"),
    "clocks.max.sm": _clock("sm_clock_max_mhz"),
    "clocks.max.mem": _clock("memory_clock_max_mhz"),
    "clocks.applications.gr": _clock("graphics_clock_application_mhz"),
    "clocks.applications.mem": _clock("memory_clock_application_mhz"),
    "ecc.mode.current": QueryField("ecc_mode", write=_capitals),
    "ecc.mode.pending": QueryField("ecc_mode_pending", write=_capitals),
    "ecc.errors.corrected.volatile.total": QueryField("ecc_corrected_volatile"),
    "ecc.errors.uncorrected.volatile.total": QueryField("ecc_uncorrected_volatile"),
    "ecc.errors.corrected.aggregate.total": QueryField("ecc_corrected_aggregate"),
    "ecc.errors.uncorrected.aggregate.total": QueryField("ecc_uncorrected_aggregate"),
    "retired_pages.single_bit_ecc.count": QueryField("retired_pages_corrected"),
    "retired_pages.double_bit.count": QueryField("retired_pages_uncorrected"),
    "retired_pages.pending": QueryField("page_retirement_pending", write=_switch),
    "pcie.link.gen.current": QueryField("pcie_generation"),
    "pcie.link.gen.max": QueryField("pcie_generation_gpu_max", at_most="pcie_generation_slot_max"),
    "pcie.link.gen.gpumax": QueryField("pcie_generation_gpu_max"),
    "pcie.link.gen.hostmax": QueryField("pcie_generation_slot_max"),
    "pcie.link.width.current": QueryField("pcie_width"),
    "pcie.link.width.max": QueryField("pcie_width_gpu_max"),
}
# Of the machine, the same for each GPU.
OF_MACHINE = ("timestamp", "driver_version", "count")
