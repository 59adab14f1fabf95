"""How a machine's readings move while it works: load, power and heat of busy GPUs.

None but a counter rises above the scenario's value, into a fault; a hot, slowed or idle GPU stays as it is.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpudiag.reference.vocabulary import FAULT_REASONS
from gpudiag.simulate.scenario import Scenario, SimulatedGpu

BUSY_PERCENT = 10
# How far each reading falls when the load is at its lowest: a share of it, or degrees.
_FALLING_SHARES = {
    "utilization_percent": 0.14,
    "memory_utilization_percent": 0.2,
    "power_draw_watts": 0.12,
    "graphics_activity_percent": 0.14,
    "sm_activity_percent": 0.2,
    "tensor_activity_percent": 0.3,
    "dram_activity_percent": 0.2,
    "nvlink_transmitted_bytes_per_second": 0.4,
    "nvlink_received_bytes_per_second": 0.4,
}
# What is counted since the driver was loaded, and the reading that it is the sum of.
_COUNTED = {
    "energy_joules": "power_draw_watts",
    "nvlink_transmitted_bytes": "nvlink_transmitted_bytes_per_second",
    "nvlink_received_bytes": "nvlink_received_bytes_per_second",
}
_FALLING_DEGREES = {"temperature_celsius": 4, "memory_temperature_celsius": 4}
_RISING_DEGREES = "temperature_margin_celsius"
# Seconds: the ups and downs of training steps, slower than the 1 s at which monitors sample, and their drift.
_SHORT_PERIOD_SECONDS = 11.0
_LONG_PERIOD_SECONDS = 97.0


def move_readings(scenario: Scenario, at_seconds: float) -> Scenario:
    """The machine `at_seconds` after it was started; only readings of busy GPUs change."""
    gpus = tuple(
        _moved(_counted(gpu, at_seconds), _fall(number, at_seconds))
        for number, gpu in enumerate(scenario.gpus)
    )
    return replace(scenario, gpus=gpus)


# What changes bit by bit when a machine becomes another one; everything else is as before until it is as
# after.
_GRADUAL = (
    *_FALLING_SHARES,
    *_FALLING_DEGREES,
    _RISING_DEGREES,
    "graphics_clock_mhz",
    "sm_clock_mhz",
)


def approach(before: Scenario, after: Scenario, share: float) -> Scenario:
    """The machine of before, that share of the way to the readings of after; GPUs by UUID."""
    later = {gpu.readings.get("uuid"): gpu.readings for gpu in after.gpus}
    gpus = tuple(
        replace(gpu, readings={**gpu.readings, **_between(gpu.readings, later[gpu.readings["uuid"]], share)})
        if gpu.readings.get("uuid") in later
        else gpu
        for gpu in before.gpus
    )
    return replace(before, gpus=gpus)


def _between(before: Mapping[str, Any], after: Mapping[str, Any], share: float) -> dict[str, Any]:
    return {
        name: type(before[name])(before[name] + (after[name] - before[name]) * share)
        for name in _GRADUAL
        if isinstance(before.get(name), int | float) and isinstance(after.get(name), int | float)
    }


def is_in_motion(scenario: Scenario) -> bool:
    """Whether any GPU of the machine is busy, so that its readings move."""
    return any(_moves(gpu.readings) for gpu in scenario.gpus)


def _fall(number: int, at_seconds: float) -> float:
    """How far the load has fallen: 0 as in the scenario, 1 at its lowest; each GPU has its own phase."""
    short = math.sin(2 * math.pi * (at_seconds / _SHORT_PERIOD_SECONDS + number / 5))
    long = math.sin(2 * math.pi * (at_seconds / _LONG_PERIOD_SECONDS + number / 3))
    return 0.5 + 0.3 * short + 0.2 * long


def _moves(readings: Mapping[str, Any]) -> bool:
    held_down = set(FAULT_REASONS) & set(readings.get("clocks_event_reasons") or ())
    return (readings.get("utilization_percent") or 0) >= BUSY_PERCENT and not held_down


def _counted(gpu: SimulatedGpu, seconds: float) -> SimulatedGpu:
    """The GPU with its counters after that time; the scenario's rate is close enough to the moving one."""
    readings = gpu.readings
    counted = {
        name: type(readings[name])(readings[name] + readings[rate] * seconds)
        for name, rate in _COUNTED.items()
        if name in readings and readings.get(rate)
    }
    return replace(gpu, readings={**readings, **counted}) if counted and _moves(readings) else gpu


def _moved(gpu: SimulatedGpu, fall: float) -> SimulatedGpu:
    if not _moves(gpu.readings):
        return gpu
    moved = dict(gpu.readings)
    for name, share in _FALLING_SHARES.items():
        if name in moved:
            value = moved[name] * (1 - share * fall)
            moved[name] = round(value, 1) if isinstance(moved[name], float) else round(value)
    for name, degrees in _FALLING_DEGREES.items():
        if name in moved:
            moved[name] -= round(degrees * fall)
    if _RISING_DEGREES in moved:
        moved[_RISING_DEGREES] += round(_FALLING_DEGREES["temperature_celsius"] * fall)
    return replace(gpu, readings=moved)
