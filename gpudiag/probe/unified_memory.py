"""Readings of GPUs that share the machine's memory with the processor, as GB10 does.

NVML knows no memory of such a GPU. That alone proves nothing, so a second witness is wanted: a product
that is known to be one, or a torch that shows the machine's own memory as the GPU's.
"""

from dataclasses import replace
from typing import Any

from gpudiag.model.device import Device, DeviceView
from gpudiag.model.host import Machine
from gpudiag.model.reading import Missing, MissingReason

# Processors with a GPU on the same memory, by NVIDIA's product pages (DGX Spark, Jetson), November 2026.
_PRODUCTS = ("GB10", "Thor", "Orin", "Xavier")
_TOLERANCE = 0.02
_PCIE_FIELDS = (
    "pcie_generation", "pcie_generation_gpu_max", "pcie_generation_slot_max",
    "pcie_width", "pcie_width_gpu_max", "pcie_width_slot_max",
)  # fmt: skip
_NO_LINK = Missing(MissingReason.NOT_SUPPORTED, "no PCIe link lies between this GPU and its memory")


def unify_memory(device: Device, machine: Machine, view: DeviceView | None) -> Device:
    """The device with the machine's memory as its own, if it shares it; `view` is torch's view of it."""
    absent = device.memory_total_bytes
    total, available = machine.memory_total_bytes, machine.memory_available_bytes
    if not isinstance(absent, Missing) or absent.reason is not MissingReason.NOT_SUPPORTED:
        return device
    if isinstance(total, Missing) or isinstance(available, Missing):
        return device
    if not (_is_known(device) or _shows_all(view, total)):
        return device
    no_link: dict[str, Any] = dict.fromkeys(_PCIE_FIELDS, _NO_LINK)
    return replace(
        device,
        memory_kind="unified",
        memory_total_bytes=total,
        memory_used_bytes=Missing(
            MissingReason.NOT_SUPPORTED, "the processor's programs use this memory too"
        ),
        memory_free_bytes=available,
        memory_reserved_bytes=Missing(MissingReason.NOT_SUPPORTED, "unified memory"),
        **no_link,
    )


def _is_known(device: Device) -> bool:
    name = device.name
    return not isinstance(name, Missing) and any(product in name.split() for product in _PRODUCTS)


def _shows_all(view: DeviceView | None, total: int) -> bool:
    theirs = view.memory_total_bytes if view is not None else None
    return isinstance(theirs, int) and abs(theirs - total) <= total * _TOLERANCE
