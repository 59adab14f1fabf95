"""How a machine's readings move while it works: load, power and heat of busy GPUs, as on a real one.

What a scenario says is the highest that a reading gets, so that nothing moves into a fault; a GPU that is
too hot, slowed down, or idle stays as it is.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpudiag.reference.vocabulary import FAULT_REASONS
from gpudiag.simulate.scenario import Scenario, SimulatedGpu

BUSY_PERCENT = 10
# How far each reading falls when the load is at its lowest: a share of it, or degrees.
_FALLING_SHARES = {"utilization_percent": 0.14, "memory_utilization_percent": 0.2, "power_draw_watts": 0.12}
_FALLING_DEGREES = {"temperature_celsius": 4, "memory_temperature_celsius": 4}
_RISING_DEGREES = "temperature_margin_celsius"
# Seconds: a training step's ups and downs, slower than the second in which monitors look, and their drift.
_SHORT_PERIOD_SECONDS = 11.0
_LONG_PERIOD_SECONDS = 97.0


def move_readings(scenario: Scenario, at_seconds: float) -> Scenario:
    """The machine that many seconds after it was switched on; only readings of busy GPUs differ."""
    gpus = tuple(_moved(gpu, _fall(number, at_seconds)) for number, gpu in enumerate(scenario.gpus))
    return replace(scenario, gpus=gpus)


def is_in_motion(scenario: Scenario) -> bool:
    """Whether anything on the machine moves at all."""
    return any(_moves(gpu.readings) for gpu in scenario.gpus)


def _fall(number: int, at_seconds: float) -> float:
    """0 where the load is as the scenario says, 1 where it is lowest; each GPU at its own moment."""
    short = math.sin(2 * math.pi * (at_seconds / _SHORT_PERIOD_SECONDS + number / 5))
    long = math.sin(2 * math.pi * (at_seconds / _LONG_PERIOD_SECONDS + number / 3))
    return 0.5 + 0.3 * short + 0.2 * long


def _moves(readings: Mapping[str, Any]) -> bool:
    held_down = set(FAULT_REASONS) & set(readings.get("clocks_event_reasons") or ())
    return (readings.get("utilization_percent") or 0) >= BUSY_PERCENT and not held_down


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
