"""A machine and its files as a Scenario, from its Blueprint."""

from dataclasses import replace
from datetime import datetime
from typing import Any

from gpudiag.errors import UsageError
from gpudiag.model.codec import decode
from gpudiag.model.device import Device
from gpudiag.simulate.blueprint import Blueprint, GpuBlueprint
from gpudiag.simulate.host.processes import describe_process
from gpudiag.simulate.host.tree import render_host_tree
from gpudiag.simulate.scenario import Scenario, SimulatedGpu
from gpudiag.simulate.torch_answer import render_torch


def render_scenario(blueprint: Blueprint, now: datetime) -> Scenario:
    """The machine with its files and torch's answer rendered.

    Raises:
        UsageError: a reading has a value of the wrong kind.
    """
    gpus = []
    for gpu in blueprint.gpus:
        number = blueprint.listed().index(gpu) if gpu.gpu.visible else None
        gpus.append(_render_gpu(gpu, number, blueprint, now))
    return Scenario(
        name=blueprint.name,
        hostname=blueprint.host.hostname,
        description=blueprint.description,
        nvml=blueprint.nvml,
        gpus=tuple(gpus),
        host=render_host_tree(blueprint, now),
        torch=render_torch(blueprint),
        environment=blueprint.environment,
        nvidia_smi_present=blueprint.nvidia_smi_present,
        sources=blueprint.sources,
        jobs=blueprint.jobs or None,
    )


def _render_gpu(gpu: GpuBlueprint, number: int | None, blueprint: Blueprint, now: datetime) -> SimulatedGpu:
    """The GPU with its processes described and the readings that follow from its NVML index `number`."""
    readings, missing = dict(gpu.gpu.readings), dict(gpu.gpu.missing)
    if "processes" in readings:
        readings["processes"] = [describe_process(entry, blueprint, now) for entry in readings["processes"]]
    missing["cuda_ordinal"] = "not_asked"
    if number is None:
        missing["nvml_index"] = "not_supported"
    else:
        readings["nvml_index"] = number
    if "responding" not in missing:
        readings["responding"] = True
    _refuse_unfit(readings, missing, number, blueprint.name)
    return replace(gpu.gpu, readings=readings, missing=missing)


def _refuse_unfit(readings: dict[str, Any], missing: dict[str, str], number: int | None, name: str) -> None:
    """Raise UsageError if a reading does not fit the model."""
    document = {**readings, **dict.fromkeys(missing), "missing": missing}
    try:
        decode(Device, document)
    except UsageError as error:
        raise UsageError(
            f"{name}: GPU {number}: {error.message.replace('document.', '')}", hint=error.hint
        ) from error
