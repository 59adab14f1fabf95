"""`load_scenario`: a machine by name, from a file, or as it was recorded, with faults, as a Scenario."""

import os
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from gpudiag.compat import UTC
from gpudiag.errors import UsageError
from gpudiag.model.codec import decode
from gpudiag.model.device import Device
from gpudiag.simulate.blueprint import Blueprint, GpuBlueprint
from gpudiag.simulate.faults.table import apply_faults, parse_faults
from gpudiag.simulate.host.processes import describe_process
from gpudiag.simulate.host.tree import render_host_tree
from gpudiag.simulate.machine_file import base_machines, build_blueprint, read_layers
from gpudiag.simulate.names import nearest_hint
from gpudiag.simulate.recorded import read_recorded
from gpudiag.simulate.scenario import Scenario, SimulatedGpu
from gpudiag.simulate.torch_answer import render_torch

__all__ = ["base_machines", "load_scenario"]

_SPEC_HINT = "write it as h100x8, h100x8+lost:3+hot:5, a .toml file, or the .json of `gpudiag list --json`"


def load_scenario(spec: str, *, now: datetime | None = None) -> Scenario:
    """The machine that `spec` names: `h100x8`, `h100x8+lost:3+hang:6`, `machine.toml+hot:5`, `a1.json`.

    Times in its host tree (boot, process starts, kernel log) are relative to `now`, by default the
    time of the call, so that what runs for six hours has always run for six hours.

    Raises:
        UsageError: no such machine, file, fault or GPU, or faults that contradict each other.
    """
    name, *fault_texts = _split(spec)
    blueprint, from_file = _read_machine(name)
    faults = parse_faults((*from_file, *fault_texts))
    blueprint = apply_faults(replace(blueprint, name=spec), faults)
    sentences = tuple(f"{fault.text}: {fault.kind.description}" for fault in faults)
    return replace(render_scenario(blueprint, now or datetime.now(UTC)), faults=sentences)


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
    )


def _split(spec: str) -> list[str]:
    """The machine's name and the faults of a spec; a file's name may itself contain a plus sign."""
    parts = spec.split("+")
    for count in range(len(parts), 0, -1):
        name = "+".join(parts[:count])
        if name.endswith((".toml", ".json")) and os.path.isfile(name):
            return [name, *parts[count:]]
    return parts


def _read_machine(name: str) -> tuple[Blueprint, tuple[str, ...]]:
    """The machine, and the faults that its file lists."""
    if name in base_machines():
        return build_blueprint(read_layers(name), name), ()
    path = Path(name)
    if path.suffix == ".json":
        return read_recorded(path), ()
    if path.suffix == ".toml":
        layers = read_layers(path)
        return build_blueprint(layers, name), tuple(
            fault for layer in layers for fault in _listed(layer, name)
        )
    raise UsageError(
        f"there is no simulated machine {name!r}",
        hint=nearest_hint(name, base_machines()) if name else _SPEC_HINT,
    )


def _listed(layer: Any, name: str) -> list[str]:
    faults = layer.get("faults", [])
    if not isinstance(faults, list) or any(not isinstance(fault, str) for fault in faults):
        raise UsageError(f'{name}: `faults` should be a list such as ["lost:3", "hot:5"]')
    return faults


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
