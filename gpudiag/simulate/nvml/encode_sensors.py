"""A GPU's moving readings: utilisation, temperatures, power, clocks, fans."""

from collections.abc import Iterable
from typing import Any

from gpudiag.reference.nvml import constant, pack_struct, struct_version
from gpudiag.reference.vocabulary import EVENT_REASONS
from gpudiag.simulate.nvml.answers import AnswerTable, Refusal, u32, u64
from gpudiag.simulate.nvml.encode_identity import numbered, word_number
from gpudiag.simulate.nvml.gpu_answers import GpuAnswers, PlacedGpu
from gpudiag.units import MILLIWATTS_PER_WATT

_SENSOR_GPU = 0  # NVML_TEMPERATURE_GPU
_KIB_PER_BYTE = 1 / 1024
_CLOCKS = ("graphics", "sm", "memory", "video")
_CLOCK_NUMBERS = {"graphics": 0, "sm": 1, "memory": 2, "video": 3}  # nvmlClockType_t
_CURRENT, _APPLICATION, _APPLICATION_DEFAULT = 0, 1, 2  # nvmlClockId_t


def encode_sensors(placed: PlacedGpu, table: AnswerTable) -> None:
    """Answer the GPU's utilisation, temperatures, power, clocks and fans."""
    answers = GpuAnswers(table, placed.subject)
    _encode_temperatures(placed, answers)
    _encode_power(placed, answers)
    _encode_clocks(placed, answers)
    _encode_fans(placed, answers)


def _encode_temperatures(placed: PlacedGpu, answers: GpuAnswers) -> None:
    temperature = placed.read("temperature_celsius")
    answers.reply("nvmlDeviceGetTemperature", temperature, keys=(_SENSOR_GPU,))
    version = struct_version("c_nvmlTemperature_v1_t", 1)

    def pack(value: int) -> bytes:
        return pack_struct(
            "c_nvmlTemperature_v1_t", version=version, sensorType=_SENSOR_GPU, temperature=value
        )

    answers.reply_versioned("nvmlDeviceGetTemperatureV", temperature, pack, version, _SENSOR_GPU)
    margin_version = struct_version("c_nvmlMarginTemperature_v1_t", 1)

    def pack_margin(value: int) -> bytes:
        return pack_struct("c_nvmlMarginTemperature_v1_t", version=margin_version, marginTemperature=value)

    margin = placed.read("temperature_margin_celsius")
    answers.reply_versioned("nvmlDeviceGetMarginTemperature", margin, pack_margin, margin_version)
    for threshold in ("acoustic_min", "acoustic_curr", "acoustic_max", "gps_curr"):
        number = constant(f"NVML_TEMPERATURE_THRESHOLD_{threshold.upper()}")
        answers.reply("nvmlDeviceGetTemperatureThreshold", Refusal(), keys=(number,))


def _encode_power(placed: PlacedGpu, answers: GpuAnswers) -> None:
    def milliwatts(name: str) -> Any:
        watts = placed.read(name)
        return watts if isinstance(watts, Refusal) else round(watts * MILLIWATTS_PER_WATT)

    draw, enforced = milliwatts("power_draw_watts"), milliwatts("power_limit_enforced_watts")
    requested, default = milliwatts("power_limit_watts"), milliwatts("power_limit_default_watts")
    lowest, highest = milliwatts("power_limit_min_watts"), milliwatts("power_limit_max_watts")
    answers.reply("nvmlDeviceGetPowerManagementMode", requested, lambda _limit: u32(1))
    for field, reading in (
        ("AVERAGE", draw),
        ("MIN_LIMIT", lowest),
        ("MAX_LIMIT", highest),
        ("DEFAULT_LIMIT", default),
        ("CURRENT_LIMIT", enforced),
        ("REQUESTED_LIMIT", requested),
    ):
        answers.reply_field(f"DEV_POWER_{field}", reading)


def _encode_clocks(placed: PlacedGpu, answers: GpuAnswers) -> None:
    for clock in _CLOCKS:
        number = _CLOCK_NUMBERS[clock]
        current = placed.read(f"{clock}_clock_mhz")
        # The model has application clocks of graphics and memory; NVML's SM clock is the graphics one.
        application = placed.read(f"{'graphics' if clock == 'sm' else clock}_clock_application_mhz")
        default = placed.read(f"{'graphics' if clock == 'sm' else clock}_clock_application_default_mhz")
        answers.reply("nvmlDeviceGetApplicationsClock", application, keys=(number,))
        answers.reply("nvmlDeviceGetDefaultApplicationsClock", default, keys=(number,))
        answers.reply("nvmlDeviceGetClock", current, keys=(number, _CURRENT))
        answers.reply("nvmlDeviceGetClock", application, keys=(number, _APPLICATION))
        answers.reply("nvmlDeviceGetClock", default, keys=(number, _APPLICATION_DEFAULT))
    answers.reply("nvmlDeviceGetMaxClockInfo", Refusal(), keys=(_CLOCK_NUMBERS["video"],))
    answers.reply_each(("nvmlDeviceGetPerformanceState", "nvmlDeviceGetPowerState"), placed.read("pstate"))
    answers.reply_each(
        ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"),
        placed.read("clocks_event_reasons"),
        lambda reasons: u64(_reason_bits(reasons)),
    )
    answers.reply_each(
        ("nvmlDeviceGetSupportedClocksEventReasons", "nvmlDeviceGetSupportedClocksThrottleReasons"),
        placed.read("clocks_event_reasons"),
        lambda _reasons: u64(constant("nvmlClocksThrottleReasonAll")),
    )


def _reason_bits(reasons: Iterable[str]) -> int:
    return sum(
        1 << word_number(numbered(EVENT_REASONS), "clocks_event_reasons", reason) for reason in reasons
    )


def _encode_fans(placed: PlacedGpu, answers: GpuAnswers) -> None:
    speed = placed.read("fan_speed_percent")
    answers.reply("nvmlDeviceGetFanSpeed_v2", speed, keys=(0,))
    answers.reply("nvmlDeviceGetNumFans", 0 if isinstance(speed, Refusal) else 1)
