"""What a GPU is doing: load, heat, power and clocks."""

from __future__ import annotations

from typing import Literal

from gpudiag.reference.declaration import (
    COUNTER,
    ByHand,
    Call,
    Dcgm,
    Declared,
    Fact,
    Family,
    Field,
    Metric,
)
from gpudiag.units import MILLIJOULES_PER_JOULE, MILLIWATTS_PER_WATT

_HERTZ_PER_MHZ = 1e6
_PERCENT = 100.0
_GRAPHICS_CLOCK, _SM_CLOCK, _MEMORY_CLOCK, _VIDEO_CLOCK = range(4)  # nvmlClockType_t

# Metrics of which several readings are samples.
_TEMPERATURE = Family("temperature_celsius", "Temperature by sensor: gpu (the core) or memory (HBM).")
_TEMPERATURE_LIMIT = Family(
    "temperature_limit_celsius", "Temperature at which the GPU slows or shuts down.", core=False
)
_CLOCK = Family("clock_hertz", "Clock frequency now.")
_CLOCK_MAX = Family("clock_max_hertz", "Highest clock frequency of the product.", core=False)


def _utilization(member: Literal["gpu", "memory"]) -> Call:
    return Call("nvmlDeviceGetUtilizationRates", gives="percent", place=member)


def _threshold(number: int) -> Call:  # nvmlTemperatureThresholds_t
    return Call("nvmlDeviceGetTemperatureThreshold", number)


def _watts(function: str, place: int | None = None) -> Call:
    return Call(function, per=MILLIWATTS_PER_WATT, place=place)


LOAD: tuple[Declared, ...] = (
    Declared(
        "utilization_percent",
        "{} %",
        _utilization("gpu"),
        "fast",
        called="load",
        history="mean",
        metric=Metric(
            Family("utilization_ratio", "Share of time in which a kernel ran, 0 to 1."),
            1 / _PERCENT,
            dcgm=Dcgm("GPU_UTIL", "GPU utilization (in %).", _PERCENT),
        ),
    ),
    Declared(
        "memory_utilization_percent",
        "memory {} %",
        _utilization("memory"),
        "fast",
        called="load of the memory controller",
        history="mean",
        metric=Metric(
            Family(
                "memory_controller_utilization_ratio",
                "Share of time in which memory was read or written, 0 to 1.",
            ),
            1 / _PERCENT,
            dcgm=Dcgm("MEM_COPY_UTIL", "Memory utilization (in %).", _PERCENT),
        ),
        fact=Fact("Memory", "Memory busy", "%"),
    ),
    Declared(
        "encoder_utilization_percent",
        "encoder {} %",
        ByHand("codecs"),
        metric=Metric(
            Family(
                "encoder_utilization_ratio", "Share of time in which the encoder worked, 0 to 1.", core=False
            ),
            1 / _PERCENT,
            dcgm=Dcgm("ENC_UTIL", "Encoder utilization (in %).", _PERCENT),
        ),
    ),
    Declared(
        "decoder_utilization_percent",
        "decoder {} %",
        ByHand("codecs"),
        metric=Metric(
            Family(
                "decoder_utilization_ratio", "Share of time in which the decoder worked, 0 to 1.", core=False
            ),
            1 / _PERCENT,
            dcgm=Dcgm("DEC_UTIL", "Decoder utilization (in %).", _PERCENT),
        ),
    ),
    Declared(
        "pstate",
        "P{}",
        ByHand("pstate"),
        called="performance state",
        history="last",
        metric=Metric(
            Family("pstate", "Performance state, 0 (fastest) to 15."),
            dcgm=Dcgm("PSTATE", "Performance state (0 is the fastest)."),
        ),
        fact=Fact("Clocks", "Performance state", "P#", after="memory_clock_mhz"),
    ),
    Declared(
        "clocks_event_reasons",
        "clocks held back by {}",
        ByHand("event_reasons"),
        "fast",
        called="what holds the clocks back",
    ),
    Declared(
        "throttle_seconds",
        "held back since driver load by {}",
        ByHand("throttle_seconds"),
        called="how long the clocks were held back",
    ),
)

HEAT: tuple[Declared, ...] = (
    Declared(
        "temperature_celsius",
        "{} C",
        Call(
            "nvmlDeviceGetTemperatureV",
            0,
            gives="running",
            older=Call("nvmlDeviceGetTemperature", 0, gives="running"),
        ),
        "fast",
        history="mean",
        metric=Metric(
            _TEMPERATURE,
            labels={"sensor": "gpu"},
            dcgm=Dcgm("GPU_TEMP", "GPU temperature (in C)."),
        ),
        fact=Fact("Heat and power", "Temperature", "°C"),
    ),
    Declared(
        "memory_temperature_celsius",
        "memory {} C",
        Field(82, gives="running"),
        history="mean",
        metric=Metric(
            _TEMPERATURE,
            labels={"sensor": "memory"},
            dcgm=Dcgm("MEMORY_TEMP", "Memory temperature (in C)."),
        ),
        fact=Fact("Memory", "Memory temperature", "°C"),
    ),
    Declared(
        "temperature_margin_celsius",
        "{} C below the limit",
        Call("nvmlDeviceGetMarginTemperature", gives="signed"),
        called="margin below the temperature limit",
        metric=Metric(
            Family("temperature_margin_celsius", "Degrees left until the GPU slows down (T.Limit).")
        ),
        fact=Fact("Heat and power", "Margin to the limit", "°C"),
    ),
    Declared(
        "temperature_margin_slowdown_celsius",
        "slows at a margin of {} C",
        Field(194, gives="signed"),
        called="margin at which the GPU slows down",
    ),
    Declared(
        "temperature_slowdown_celsius",
        "slows at {} C",
        _threshold(1),
        "fixed",
        called="temperature at which the GPU slows down",
        metric=Metric(
            _TEMPERATURE_LIMIT,
            labels={"limit": "slowdown"},
            dcgm=Dcgm("SLOWDOWN_TEMP", "Temperature at which the GPU slows down (in C)."),
        ),
        fact=Fact("Heat and power", "Slowdown at", "°C"),
    ),
    Declared(
        "temperature_shutdown_celsius",
        "shuts down at {} C",
        _threshold(0),
        "fixed",
        called="temperature at which the GPU shuts down",
        metric=Metric(
            _TEMPERATURE_LIMIT,
            labels={"limit": "shutdown"},
            dcgm=Dcgm("SHUTDOWN_TEMP", "Temperature at which the GPU shuts down (in C)."),
        ),
        fact=Fact("Heat and power", "Shutdown at", "°C"),
    ),
    Declared(
        "temperature_gpu_max_celsius",
        "GPU at most {} C",
        _threshold(3),
        "fixed",
        called="highest temperature for the GPU",
    ),
    Declared(
        "temperature_memory_max_celsius",
        "memory at most {} C",
        _threshold(2),
        "fixed",
        called="highest temperature for its memory",
    ),
    Declared(
        "fan_speed_percent",
        "fan {} %",
        Call("nvmlDeviceGetFanSpeed"),
        history="mean",
        metric=Metric(
            Family("fan_speed_ratio", "Fan speed as a share of the highest, 0 to 1."),
            1 / _PERCENT,
            dcgm=Dcgm("FAN_SPEED", "Fan speed (in %).", _PERCENT),
        ),
        fact=Fact("Heat and power", "Fan", "%", after="power_limit_default_watts"),
    ),
)

POWER: tuple[Declared, ...] = (
    # Costs microseconds where nvmlDeviceGetPowerUsage may cost milliseconds on an idle GPU.
    Declared(
        "power_draw_watts",
        "{} W",
        Field(
            186,
            gives="running",
            per=MILLIWATTS_PER_WATT,
            otherwise=Call("nvmlDeviceGetPowerUsage", gives="running", per=MILLIWATTS_PER_WATT),
        ),
        "fast",
        history="mean",
        metric=Metric(
            Family("power_watts", "Power drawn now."),
            dcgm=Dcgm("POWER_USAGE", "Power draw (in W)."),
        ),
        fact=Fact("Heat and power", "Power", "W"),
    ),
    Declared(
        "power_limit_enforced_watts",
        "enforced limit {} W",
        _watts("nvmlDeviceGetEnforcedPowerLimit"),
        called="enforced power limit",
        history="last",
        metric=Metric(
            Family("power_limit_watts", "Power limit that is enforced."),
            dcgm=Dcgm("ENFORCED_POWER_LIMIT", "Enforced power limit (in W)."),
        ),
        fact=Fact("Heat and power", "Enforced limit", "W"),
    ),
    Declared(
        "power_limit_watts",
        "set {} W",
        _watts("nvmlDeviceGetPowerManagementLimit"),
        metric=Metric(
            Family(
                "power_limit_set_watts", "Power limit that is set; a lower one may be enforced.", core=False
            ),
            dcgm=Dcgm("POWER_MGMT_LIMIT", "Power limit that is set (in W)."),
        ),
    ),
    Declared(
        "power_limit_default_watts",
        "default {} W",
        _watts("nvmlDeviceGetPowerManagementDefaultLimit"),
        "fixed",
        called="default power limit",
        fact=Fact("Heat and power", "Default limit", "W"),
    ),
    Declared(
        "power_limit_min_watts",
        "least {} W",
        _watts("nvmlDeviceGetPowerManagementLimitConstraints", 0),
        "fixed",
        called="lowest power limit",
    ),
    Declared(
        "power_limit_max_watts",
        "most {} W",
        _watts("nvmlDeviceGetPowerManagementLimitConstraints", 1),
        "fixed",
        called="highest power limit",
    ),
    Declared(
        "energy_joules",
        "{} used",
        Field(
            83,
            per=MILLIJOULES_PER_JOULE,
            wide=True,
            otherwise=Call("nvmlDeviceGetTotalEnergyConsumption", per=MILLIJOULES_PER_JOULE, wide=True),
        ),
        metric=Metric(
            Family("energy_joules", "Energy taken since the driver was loaded.", COUNTER),
            dcgm=Dcgm(
                "TOTAL_ENERGY_CONSUMPTION",
                "Total energy consumption since boot (in mJ).",
                float(MILLIJOULES_PER_JOULE),
                COUNTER,
            ),
        ),
    ),
)

CLOCKS: tuple[Declared, ...] = (
    Declared(
        "sm_clock_mhz",
        "SM {} MHz",
        Call("nvmlDeviceGetClockInfo", _SM_CLOCK, gives="running"),
        "fast",
        history="mean",
        metric=Metric(
            _CLOCK,
            _HERTZ_PER_MHZ,
            {"clock": "sm"},
            dcgm=Dcgm("SM_CLOCK", "SM clock frequency (in MHz).", 1 / _HERTZ_PER_MHZ),
        ),
        fact=Fact("Clocks", "SM", "MHz"),
    ),
    Declared(
        "sm_clock_max_mhz",
        "max {}",
        Call("nvmlDeviceGetMaxClockInfo", _SM_CLOCK),
        "fixed",
        metric=Metric(
            _CLOCK_MAX,
            _HERTZ_PER_MHZ,
            {"clock": "sm"},
            dcgm=Dcgm("MAX_SM_CLOCK", "Maximum SM clock frequency (in MHz).", 1 / _HERTZ_PER_MHZ),
        ),
        fact=Fact("Clocks", "SM at most", "MHz"),
    ),
    Declared(
        "memory_clock_mhz",
        "memory {} MHz",
        Call("nvmlDeviceGetClockInfo", _MEMORY_CLOCK),
        history="mean",
        metric=Metric(
            _CLOCK,
            _HERTZ_PER_MHZ,
            {"clock": "memory"},
            dcgm=Dcgm("MEM_CLOCK", "Memory clock frequency (in MHz).", 1 / _HERTZ_PER_MHZ),
        ),
        fact=Fact("Clocks", "Memory", "MHz"),
    ),
    Declared(
        "memory_clock_max_mhz",
        "max {}",
        Call("nvmlDeviceGetMaxClockInfo", _MEMORY_CLOCK),
        "fixed",
        metric=Metric(
            _CLOCK_MAX,
            _HERTZ_PER_MHZ,
            {"clock": "memory"},
            dcgm=Dcgm("MAX_MEM_CLOCK", "Maximum memory clock frequency (in MHz).", 1 / _HERTZ_PER_MHZ),
        ),
    ),
    Declared(
        "graphics_clock_mhz",
        "graphics {} MHz",
        Call("nvmlDeviceGetClockInfo", _GRAPHICS_CLOCK, gives="running"),
    ),
    Declared("graphics_clock_max_mhz", "max {}", Call("nvmlDeviceGetMaxClockInfo", _GRAPHICS_CLOCK), "fixed"),
    Declared(
        "video_clock_mhz",
        "video {} MHz",
        Call("nvmlDeviceGetClockInfo", _VIDEO_CLOCK),
        metric=Metric(
            _CLOCK,
            _HERTZ_PER_MHZ,
            {"clock": "video"},
            dcgm=Dcgm("VIDEO_CLOCK", "Video clock frequency (in MHz).", 1 / _HERTZ_PER_MHZ),
            rare=True,
        ),
    ),
    Declared(
        "graphics_clock_application_mhz",
        "application graphics {} MHz",
        Call("nvmlDeviceGetApplicationsClock", _GRAPHICS_CLOCK),
        "fixed",
        called="graphics clock for applications",
    ),
    Declared(
        "memory_clock_application_mhz",
        "application memory {} MHz",
        Call("nvmlDeviceGetApplicationsClock", _MEMORY_CLOCK),
        "fixed",
        called="memory clock for applications",
    ),
    Declared(
        "graphics_clock_application_default_mhz",
        "default graphics {} MHz",
        Call("nvmlDeviceGetDefaultApplicationsClock", _GRAPHICS_CLOCK),
        "fixed",
        called="default graphics clock for applications",
    ),
    Declared(
        "memory_clock_application_default_mhz",
        "default memory {} MHz",
        Call("nvmlDeviceGetDefaultApplicationsClock", _MEMORY_CLOCK),
        "fixed",
        called="default memory clock for applications",
    ),
)
