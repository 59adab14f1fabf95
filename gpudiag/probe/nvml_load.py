"""What a GPU is doing: utilisation, temperatures, power, clocks, PCIe link, fan."""

from __future__ import annotations

from gpudiag.probe.nvml_ask import Ask, DeviceSheet
from gpudiag.probe.sheet import ERROR, NOT_SUPPORTED, Absent
from gpudiag.units import MILLIWATTS_PER_WATT

_MEMORY_TEMPERATURE_FIELD = 82  # NVML_FI_DEV_MEMORY_TEMP
_POWER_INSTANT_FIELD = 186  # NVML_FI_DEV_POWER_INSTANT
_GPU_SENSOR = 0  # NVML_TEMPERATURE_GPU
_SHUTDOWN, _SLOWDOWN = 0, 1  # nvmlTemperatureThresholds_t
_GRAPHICS, _SM, _MEMORY, _VIDEO = range(4)  # nvmlClockType_t
_PSTATE_UNKNOWN = 32  # NVML_PSTATE_UNKNOWN

# nvmlClocksEventReason*, and the two that only the older nvmlClocksThrottleReason* names; bit by bit.
EVENT_REASONS = (
    "gpu_idle", "applications_clocks_setting", "sw_power_cap", "hw_slowdown", "sync_boost",
    "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "display_clocks_setting",
    "board_limit", "reliability",
)  # fmt: skip


def read_load(ask: Ask, sheet: DeviceSheet) -> None:
    """Fill in the readings that change from second to second, and the limits that they are held against."""
    sheet.read_together(("utilization_percent", "memory_utilization_percent"), _utilization, ask)
    _read_temperatures(ask, sheet)
    _read_power(ask, sheet)
    _read_clocks(ask, sheet)
    sheet.read("pstate", _pstate, ask)
    sheet.read("clocks_event_reasons", _event_reasons, ask)
    _read_pcie(ask, sheet)
    sheet.read("fan_speed_percent", ask.number, "nvmlDeviceGetFanSpeed")


def read_moving(ask: Ask, sheet: DeviceSheet) -> None:
    """Fill in only what changes from second to second, in as few calls as it takes (8 on a new driver)."""
    # On a sheet that nobody looks at: where the batch fails, each field is asked for singly.
    DeviceSheet().read("batch", ask.read_fields, (_MEMORY_TEMPERATURE_FIELD, _POWER_INSTANT_FIELD))
    sheet.read_together(("utilization_percent", "memory_utilization_percent"), _utilization, ask)
    _read_current_temperatures(ask, sheet)
    sheet.read("power_draw_watts", _power_draw, ask)
    sheet.read("sm_clock_mhz", ask.number, "nvmlDeviceGetClockInfo", _SM)
    sheet.read("memory_clock_mhz", ask.number, "nvmlDeviceGetClockInfo", _MEMORY)
    sheet.read("pstate", _pstate, ask)
    sheet.read("clocks_event_reasons", _event_reasons, ask)


def _utilization(ask: Ask) -> tuple[int, int]:
    rates = ask("nvmlDeviceGetUtilizationRates")
    return rates.gpu, rates.memory


def _read_temperatures(ask: Ask, sheet: DeviceSheet) -> None:
    _read_current_temperatures(ask, sheet)
    sheet.read("temperature_margin_celsius", ask, "nvmlDeviceGetMarginTemperature")
    sheet.read("temperature_slowdown_celsius", ask, "nvmlDeviceGetTemperatureThreshold", _SLOWDOWN)
    sheet.read("temperature_shutdown_celsius", ask, "nvmlDeviceGetTemperatureThreshold", _SHUTDOWN)


def _read_current_temperatures(ask: Ask, sheet: DeviceSheet) -> None:
    sheet.read(
        "temperature_celsius",
        ask.first_of,
        lambda: ask("nvmlDeviceGetTemperatureV", _GPU_SENSOR),
        lambda: ask("nvmlDeviceGetTemperature", _GPU_SENSOR),
    )
    sheet.read("memory_temperature_celsius", lambda: int(ask.field(_MEMORY_TEMPERATURE_FIELD)))


def _read_power(ask: Ask, sheet: DeviceSheet) -> None:
    sheet.read("power_draw_watts", _power_draw, ask)
    for field, name in (
        ("power_limit_enforced_watts", "nvmlDeviceGetEnforcedPowerLimit"),
        ("power_limit_watts", "nvmlDeviceGetPowerManagementLimit"),
        ("power_limit_default_watts", "nvmlDeviceGetPowerManagementDefaultLimit"),
    ):
        sheet.read(field, _watts, ask, name)
    sheet.read_together(
        ("power_limit_min_watts", "power_limit_max_watts"),
        lambda: [
            limit / MILLIWATTS_PER_WATT for limit in ask("nvmlDeviceGetPowerManagementLimitConstraints")
        ],
    )


def _power_draw(ask: Ask) -> float:
    """Watts at this instant; where the driver has only the one-second average, that.

    Field 186 costs microseconds where nvmlDeviceGetPowerUsage may cost milliseconds on an idle GPU.
    """
    try:
        return ask.field(_POWER_INSTANT_FIELD) / MILLIWATTS_PER_WATT
    except Absent:
        return _watts(ask, "nvmlDeviceGetPowerUsage")


def _watts(ask: Ask, name: str) -> float:
    return ask.number(name) / MILLIWATTS_PER_WATT


def _read_clocks(ask: Ask, sheet: DeviceSheet) -> None:
    for field, name, clock in (
        ("graphics_clock_mhz", "nvmlDeviceGetClockInfo", _GRAPHICS),
        ("sm_clock_mhz", "nvmlDeviceGetClockInfo", _SM),
        ("memory_clock_mhz", "nvmlDeviceGetClockInfo", _MEMORY),
        ("video_clock_mhz", "nvmlDeviceGetClockInfo", _VIDEO),
        ("graphics_clock_max_mhz", "nvmlDeviceGetMaxClockInfo", _GRAPHICS),
        ("sm_clock_max_mhz", "nvmlDeviceGetMaxClockInfo", _SM),
        ("memory_clock_max_mhz", "nvmlDeviceGetMaxClockInfo", _MEMORY),
        ("graphics_clock_application_mhz", "nvmlDeviceGetApplicationsClock", _GRAPHICS),
        ("memory_clock_application_mhz", "nvmlDeviceGetApplicationsClock", _MEMORY),
    ):
        sheet.read(field, ask.number, name, clock)


def _pstate(ask: Ask) -> int:
    state: int = ask("nvmlDeviceGetPerformanceState")
    if state == _PSTATE_UNKNOWN:
        raise Absent(NOT_SUPPORTED, "NVML answers P32, unknown")
    return state


def _event_reasons(ask: Ask) -> list[str]:
    mask = ask.first_of(
        lambda: ask("nvmlDeviceGetCurrentClocksEventReasons"),
        lambda: ask("nvmlDeviceGetCurrentClocksThrottleReasons"),
    )
    return parse_event_reasons(mask)


def parse_event_reasons(mask: int) -> list[str]:
    """The reasons that a clocks event mask names, lowest bit first; `bit_11` where gpudiag has no word."""
    bits = [bit for bit in range(mask.bit_length()) if mask >> bit & 1]
    return [EVENT_REASONS[bit] if bit < len(EVENT_REASONS) else f"bit_{bit}" for bit in bits]


def _read_pcie(ask: Ask, sheet: DeviceSheet) -> None:
    sheet.read("pcie_generation", _link, ask, "nvmlDeviceGetCurrPcieLinkGeneration")
    sheet.read("pcie_width", _link, ask, "nvmlDeviceGetCurrPcieLinkWidth")
    sheet.read(
        "pcie_generation_gpu_max",
        ask.first_of,
        lambda: _link(ask, "nvmlDeviceGetGpuMaxPcieLinkGeneration"),
        lambda: _link(ask, "nvmlDeviceGetMaxPcieLinkGeneration"),
    )
    sheet.read("pcie_width_gpu_max", _link, ask, "nvmlDeviceGetMaxPcieLinkWidth")
    sheet.read("pcie_replay_count", ask.number, "nvmlDeviceGetPcieReplayCounter")


def _link(ask: Ask, name: str) -> int:
    number = ask.number(name)
    if number == 0:  # no generation and no width is 0
        raise Absent(ERROR, "NVML answers 0")
    return number
