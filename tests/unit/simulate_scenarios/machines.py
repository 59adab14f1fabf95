"""What the tests of scenarios share: a fixed time, and machines to look at."""

from datetime import datetime
from functools import cache
from typing import Any

from gpudiag.compat import UTC
from gpudiag.model.codec import decode
from gpudiag.model.device import Device
from gpudiag.simulate.loader import load_scenario
from gpudiag.simulate.scenario import Scenario, SimulatedGpu

NOW = datetime(2026, 11, 20, 21, 0, tzinfo=UTC)


@cache
def machine(spec: str) -> Scenario:
    """The scenario of that spec at a fixed time, so that two of them can be compared."""
    return load_scenario(spec, now=NOW)


def listed(scenario: Scenario) -> list[SimulatedGpu]:
    """The GPUs that NVML lists, by their index."""
    return [gpu for gpu in scenario.gpus if gpu.visible]


def device_of(gpu: SimulatedGpu) -> Device:
    """The model's noun for that GPU."""
    return decode(Device, {**gpu.readings, **dict.fromkeys(gpu.missing), "missing": dict(gpu.missing)})


def changed_readings(before: SimulatedGpu, after: SimulatedGpu) -> set[str]:
    """The readings that differ between two states of a GPU, in value or in the reason for none."""
    names = {*before.readings, *after.readings, *before.missing, *after.missing}
    return {name for name in names if value_of(before, name) != value_of(after, name)}


def value_of(gpu: SimulatedGpu, name: str) -> Any:
    """A reading's value, or the reason for none."""
    return gpu.readings.get(name, gpu.missing.get(name))


def kernel_log(scenario: Scenario) -> list[str]:
    """The texts of the kernel log, oldest first."""
    records = scenario.host.files.get("dev/kmsg", "").splitlines()
    return [record.split(";", 1)[1] for record in records]
