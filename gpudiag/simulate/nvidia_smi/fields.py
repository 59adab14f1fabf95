"""The fields of nvidia-smi's --query-gpu: how each is read, and its unit."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

from gpudiag.reference.vocabulary import (
    ACTIONS_IN_NVIDIA_SMI,
    ARCHITECTURES,
    ARCHITECTURES_IN_NVIDIA_SMI,
    BRANDS,
    BRANDS_IN_NVIDIA_SMI,
    COMPUTE_MODES,
    QUERY_ALIASES,
    RECOVERY_ACTIONS,
    word_of,
)
from gpudiag.simulate.nvidia_smi.nvml import GPU_IS_LOST, NOT_SUPPORTED, Gpu, NvmlError, Reader, words_of

_MIB = 1024**2
_GRAPHICS, _SM, _MEMORY, _VIDEO = range(4)  # nvmlClockType_t
_CORRECTED, _UNCORRECTED, _VOLATILE, _AGGREGATE = 0, 1, 0, 1
_MEMORY_TEMPERATURE, _RECOVERY_ACTION = 82, 230  # NVML_FI_DEV_*
_UNKNOWN = "Unknown"
_MARGIN_VERSION = 8 | 1 << 24  # nvmlMarginTemperature_v1_t


def read_margin(gpu: Gpu) -> int:
    """The margin to the thermal limit, in degrees Celsius."""
    margin = (ctypes.c_int * 2)(_MARGIN_VERSION)
    gpu.nvml.call("nvmlDeviceGetMarginTemperature", gpu.handle, ctypes.byref(margin))
    return margin[1]


def read_temperature(gpu: Gpu) -> int:
    """The temperature of the GPU's core, in degrees Celsius."""
    try:
        reading = (ctypes.c_int * 3)(12 | 1 << 24, 0)  # nvmlTemperature_v1_t: version, sensor, value
        gpu.nvml.call("nvmlDeviceGetTemperatureV", gpu.handle, ctypes.byref(reading))
        return reading[2]
    except NvmlError:
        return gpu.number("GetTemperature", 0)


def read_recovery_action(gpu: Gpu) -> str:
    """The recovery action that the driver asks for, in nvidia-smi's words."""
    return ACTIONS_IN_NVIDIA_SMI.get(word_of(RECOVERY_ACTIONS, gpu.field(_RECOVERY_ACTION)), _UNKNOWN)


def read_compute_mode(gpu: Gpu) -> str:
    """The compute mode, in nvidia-smi's words."""
    return _in_capitals(COMPUTE_MODES, gpu.number("GetComputeMode"))


def read_architecture(gpu: Gpu) -> str:
    """The architecture, in nvidia-smi's words."""
    return _in_capitals(ARCHITECTURES, gpu.number("GetArchitecture"), ARCHITECTURES_IN_NVIDIA_SMI)


def read_brand(gpu: Gpu) -> str:
    """The brand, in nvidia-smi's words."""
    return _in_capitals(BRANDS, gpu.number("GetBrand"), BRANDS_IN_NVIDIA_SMI)


def _in_capitals(words: tuple[str | None, ...], number: int, others: Mapping[str, str] | None = None) -> str:
    """The word for NVML's number, each part with a capital letter, or the one in `others`."""
    word = word_of(words, number)
    return (others or {}).get(word, _UNKNOWN if word not in words else word.title())


def switch(number: int) -> str:
    """`Enabled` or `Disabled`."""
    return "Enabled" if number else "Disabled"


def watts(milliwatts: int) -> str:
    """Watts with two decimals, as nvidia-smi prints them."""
    return f"{milliwatts / 1000:.2f}"


def mebibytes(gpu: Gpu, part: str) -> int:
    """One part of the memory in MiB, rounded up: in real output the parts sum to one more than the total."""
    memory = gpu.memory_bytes()
    if part not in memory:
        raise NvmlError(NOT_SUPPORTED)
    return -(-memory[part] // _MIB)


def capability(gpu: Gpu) -> str:
    """The CUDA compute capability: `9.0`."""
    major, minor = gpu.pair("GetCudaComputeCapability")
    return f"{major}.{minor}"


# name -> how it is read, and the unit that is printed after it
FIELDS: dict[str, tuple[Reader, str]] = {
    "index": (lambda gpu: gpu.nvml_index, ""),
    "uuid": (lambda gpu: gpu.text("GetUUID"), ""),
    "name": (lambda gpu: gpu.text("GetName"), ""),
    "serial": (lambda gpu: gpu.text("GetSerial"), ""),
    "pci.bus_id": (lambda gpu: gpu.bus_id(), ""),
    "driver_version": (lambda gpu: gpu.nvml.text("nvmlSystemGetDriverVersion"), ""),
    "count": (lambda gpu: gpu.nvml.number("nvmlDeviceGetCount_v2"), ""),
    "vbios_version": (lambda gpu: gpu.text("GetVbiosVersion"), ""),
    "compute_cap": (capability, ""),
    "minor_number": (lambda gpu: gpu.number("GetMinorNumber"), ""),
    "display_mode": (lambda gpu: switch(gpu.number("GetDisplayMode")), ""),
    "display_active": (lambda gpu: switch(gpu.number("GetDisplayActive")), ""),
    "persistence_mode": (lambda gpu: switch(gpu.number("GetPersistenceMode")), ""),
    "compute_mode": (read_compute_mode, ""),
    "gpu_recovery_action": (read_recovery_action, ""),
    "pstate": (lambda gpu: f"P{gpu.number('GetPerformanceState')}", ""),
    "memory.total": (lambda gpu: mebibytes(gpu, "total"), "MiB"),
    "memory.reserved": (lambda gpu: mebibytes(gpu, "reserved"), "MiB"),
    "memory.used": (lambda gpu: mebibytes(gpu, "used"), "MiB"),
    "memory.free": (lambda gpu: mebibytes(gpu, "free"), "MiB"),
    "utilization.gpu": (lambda gpu: gpu.numbers("GetUtilizationRates", 2)[0], "%"),
    "utilization.memory": (lambda gpu: gpu.numbers("GetUtilizationRates", 2)[1], "%"),
    "temperature.gpu": (read_temperature, ""),
    "temperature.gpu.tlimit": (read_margin, ""),
    "temperature.memory": (lambda gpu: gpu.field(_MEMORY_TEMPERATURE), ""),
    "fan.speed": (lambda gpu: gpu.number("GetFanSpeed"), "%"),
    "power.draw": (lambda gpu: watts(gpu.number("GetPowerUsage")), "W"),
    "power.limit": (lambda gpu: watts(gpu.number("GetPowerManagementLimit")), "W"),
    "enforced.power.limit": (lambda gpu: watts(gpu.number("GetEnforcedPowerLimit")), "W"),
    "power.default_limit": (lambda gpu: watts(gpu.number("GetPowerManagementDefaultLimit")), "W"),
    "power.min_limit": (lambda gpu: watts(gpu.pair("GetPowerManagementLimitConstraints")[0]), "W"),
    "power.max_limit": (lambda gpu: watts(gpu.pair("GetPowerManagementLimitConstraints")[1]), "W"),
    "clocks.gr": (lambda gpu: gpu.number("GetClockInfo", _GRAPHICS), "MHz"),
    "clocks.sm": (lambda gpu: gpu.number("GetClockInfo", _SM), "MHz"),
    "clocks.mem": (lambda gpu: gpu.number("GetClockInfo", _MEMORY), "MHz"),
    "clocks.video": (lambda gpu: gpu.number("GetClockInfo", _VIDEO), "MHz"),
    "clocks.max.gr": (lambda gpu: gpu.number("GetMaxClockInfo", _GRAPHICS), "MHz"),
    "clocks.max.sm": (lambda gpu: gpu.number("GetMaxClockInfo", _SM), "MHz"),
    "clocks.max.mem": (lambda gpu: gpu.number("GetMaxClockInfo", _MEMORY), "MHz"),
    "clocks.applications.gr": (lambda gpu: gpu.number("GetApplicationsClock", _GRAPHICS), "MHz"),
    "clocks.applications.mem": (lambda gpu: gpu.number("GetApplicationsClock", _MEMORY), "MHz"),
    "clocks_event_reasons.active": (
        lambda gpu: f"0x{gpu.wide('GetCurrentClocksEventReasons'):016x}",
        "",
    ),
    "ecc.mode.current": (lambda gpu: switch(gpu.pair("GetEccMode")[0]), ""),
    "ecc.mode.pending": (lambda gpu: switch(gpu.pair("GetEccMode")[1]), ""),
    "ecc.errors.corrected.volatile.total": (
        lambda gpu: gpu.wide("GetTotalEccErrors", _CORRECTED, _VOLATILE),
        "",
    ),
    "ecc.errors.uncorrected.volatile.total": (
        lambda gpu: gpu.wide("GetTotalEccErrors", _UNCORRECTED, _VOLATILE),
        "",
    ),
    "ecc.errors.corrected.aggregate.total": (
        lambda gpu: gpu.wide("GetTotalEccErrors", _CORRECTED, _AGGREGATE),
        "",
    ),
    "ecc.errors.uncorrected.aggregate.total": (
        lambda gpu: gpu.wide("GetTotalEccErrors", _UNCORRECTED, _AGGREGATE),
        "",
    ),
    "mig.mode.current": (lambda gpu: switch(gpu.pair("GetMigMode")[0]), ""),
    "mig.mode.pending": (lambda gpu: switch(gpu.pair("GetMigMode")[1]), ""),
    "pcie.link.gen.current": (lambda gpu: gpu.number("GetCurrPcieLinkGeneration"), ""),
    "pcie.link.gen.max": (lambda gpu: gpu.number("GetMaxPcieLinkGeneration"), ""),
    "pcie.link.gen.gpumax": (lambda gpu: gpu.number("GetGpuMaxPcieLinkGeneration"), ""),
    "pcie.link.width.current": (lambda gpu: gpu.number("GetCurrPcieLinkWidth"), ""),
    "pcie.link.width.max": (lambda gpu: gpu.number("GetMaxPcieLinkWidth"), ""),
}


def find_field(name: str) -> tuple[Reader, str] | None:
    """How the field is read and its unit, or None where nvidia-smi has no such field."""
    return FIELDS.get(QUERY_ALIASES.get(name, name))


def render_header(names: list[str], *, with_units: bool) -> str:
    """The first line of CSV: the names, with their units in brackets."""
    cells = []
    for name in names:
        unit = (find_field(name) or (None, ""))[1]
        cells.append(f"{name} [{unit}]" if unit and with_units else name)
    return ", ".join(cells)


def render_row(gpu: Gpu, names: list[str], *, with_units: bool) -> tuple[str, bool]:
    """One GPU's line of CSV, and whether one of its cells reads as a lost GPU."""
    cells, is_lost = [], False
    for name in names:
        field = find_field(name)
        if field is None:
            continue
        reader, unit = field
        try:
            value = str(reader(gpu))
            cells.append(f"{value} {unit}" if unit and with_units else value)
        except NvmlError as error:
            cells.append(f"[{words_of(gpu.nvml, error.code)}]")
            is_lost |= error.code == GPU_IS_LOST
    return ", ".join(cells), is_lost
