"""Faults of what a GPU is connected with: its PCIe link and its NVLinks."""

from collections.abc import Callable
from typing import Any

from gpudiag.simulate.blueprint import Blueprint, GpuBlueprint
from gpudiag.simulate.fault import Fault, has

_GENERATIONS_LOST = 2
_LINK_ERRORS = {"crc_flit_errors": 1843, "crc_data_errors": 12, "replay_errors": 37, "recovery_errors": 2}


def narrow_pcie(blueprint: Blueprint, fault: Fault) -> Blueprint:
    """Half of the PCIe link's lanes did not train."""
    return blueprint.change_gpu(
        fault.on, lambda gpu: _pcie(fault, gpu, "pcie_width", lambda width: max(1, width // 2))
    )


def slow_pcie(blueprint: Blueprint, fault: Fault) -> Blueprint:
    """The PCIe link trained two generations below what GPU and slot can do."""

    def change(gpu: GpuBlueprint) -> GpuBlueprint:
        best = gpu.gpu.readings.get("pcie_generation_gpu_max", 1)
        best = min(best, gpu.gpu.readings.get("pcie_generation_slot_max", best))
        return _pcie(fault, gpu, "pcie_generation", lambda _: max(1, best - _GENERATIONS_LOST))

    return blueprint.change_gpu(fault.on, change)


def break_nvlink(blueprint: Blueprint, fault: Fault) -> Blueprint:
    """One NVLink of the GPU, or all of them, did not come up: NVML says so, and nothing else does.

    A link that fails under traffic is logged too: `xid:N:74`, on Blackwell 144 to 150.
    """
    chosen = None if fault.argument is None else int(fault.argument)
    links = _links(fault, blueprint.listed()[fault.on])
    if chosen is not None and chosen not in [link["link"] for link in links]:
        raise fault.refuse(f"the GPU has NVLinks 0 to {len(links) - 1}, not {chosen}")
    changed = [{**link, "active": False} if chosen in (None, link["link"]) else link for link in links]
    return blueprint.change_gpu(fault.on, lambda gpu: gpu.with_readings(nvlinks=changed))


def spoil_nvlink(blueprint: Blueprint, fault: Fault) -> Blueprint:
    """The first NVLink of the GPU counts errors."""
    links = _links(fault, blueprint.listed()[fault.on])
    first = links[0]
    if first.get("crc_flit_errors") is None:
        raise fault.refuse("the GPU's NVLinks have no error counters")
    changed = [{**first, **{name: first[name] + errors for name, errors in _LINK_ERRORS.items()}}, *links[1:]]
    return blueprint.change_gpu(fault.on, lambda gpu: gpu.with_readings(nvlinks=changed))


def _pcie(fault: Fault, gpu: GpuBlueprint, name: str, lower: Callable[[int], int]) -> GpuBlueprint:
    if not has(gpu, name):
        raise fault.refuse("the GPU has no PCIe link")
    lowered = lower(gpu.gpu.readings[name])
    if lowered >= gpu.gpu.readings.get(f"{name}_gpu_max", lowered + 1):
        raise fault.refuse("its PCIe link can be no lower")
    return gpu.with_readings(**{name: lowered})


def _links(fault: Fault, gpu: GpuBlueprint) -> list[dict[str, Any]]:
    if not has(gpu, "nvlinks"):
        raise fault.refuse("the GPU has no NVLink")
    links: list[dict[str, Any]] = gpu.gpu.readings["nvlinks"]
    return links
