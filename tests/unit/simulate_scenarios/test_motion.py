"""The readings of a simulated machine move as those of a working one, and never into a fault."""

import pytest

from gpudiag.simulate.loader import load_scenario
from gpudiag.simulate.motion import is_in_motion, move_readings
from gpudiag.simulate.nvml.state import render_state
from gpudiag.simulate.scenario import Scenario

MOMENTS = [second / 2 for second in range(1, 400)]
UPPER_BOUNDS = (
    "utilization_percent",
    "power_draw_watts",
    "temperature_celsius",
    "memory_temperature_celsius",
)


def readings(scenario: Scenario, position: int, name: str) -> list[float]:
    return [move_readings(scenario, at).gpus[position].readings[name] for at in MOMENTS]


@pytest.mark.parametrize("name", UPPER_BOUNDS)
def test_a_busy_gpu_moves_and_never_above_the_scenario(name: str) -> None:
    scenario = load_scenario("h100x8+busy:0+busy:1")
    declared = scenario.gpus[0].readings[name]
    seen = readings(scenario, 0, name)
    assert len(set(seen)) >= 4
    assert max(seen) <= declared
    assert min(seen) >= declared * 0.8


def test_busy_gpus_do_not_move_in_step() -> None:
    scenario = load_scenario("h100x8+busy:0+busy:1")
    assert readings(scenario, 0, "power_draw_watts") != readings(scenario, 1, "power_draw_watts")


def test_the_margin_rises_by_what_the_temperature_falls() -> None:
    scenario = load_scenario("h100x8+busy:0")
    sums = {
        gpu.readings["temperature_celsius"] + gpu.readings["temperature_margin_celsius"]
        for gpu in (move_readings(scenario, at).gpus[0] for at in MOMENTS)
    }
    assert len(sums) == 1


@pytest.mark.parametrize(
    "spec", ["h100x8", "h100x8+hot:0", "h100x8+busy:0+throttle:0", "h100x8+lost:0", "none"]
)
def test_an_idle_or_faulty_gpu_stays_as_it_is(spec: str) -> None:
    scenario = load_scenario(spec)
    assert not is_in_motion(scenario)
    assert move_readings(scenario, 33.0) == scenario


def test_nvml_can_return_every_moved_reading() -> None:
    scenario = load_scenario("rtx4090x2+busy:0")
    assert render_state(move_readings(scenario, 5.0)) != render_state(scenario)
