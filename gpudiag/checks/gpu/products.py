"""The kind of product that a GPU is, by the driver's words: some settings are right for one kind only."""

import re

from gpudiag.model.device import Device
from gpudiag.model.reading import Missing

# Brands that NVML gives to products for desks and laptops (nvmlBrandType_t).
_CONSUMER_BRANDS = ("geforce", "geforce_rtx", "titan", "titan_rtx")
_WORKSTATION_BRANDS = ("quadro", "quadro_rtx", "nvidia_rtx", "nvs")
# A share of a GPU that a hypervisor assigns; its settings are the hypervisor's (`NVIDIA A10-24Q`, `GRID
# T4-16C`).
_VIRTUAL_BRANDS = ("grid", "vapps", "vpc", "vcs", "vws", "cloud_gaming")
_VIRTUAL_NAME = re.compile(r"-\d+[ABCQ]$")
_CONSUMER_WORDS = ("GeForce", "TITAN")
_WORKSTATION_WORDS = ("RTX", "Quadro", "Display")  # a DGX Station has a card of its own for the screen
_COHERENT = ("GH200", "GB200", "GB300")


def is_consumer(device: Device) -> bool:
    """Whether the GPU is a GeForce or TITAN: no ECC to rely on, no forward compatibility, no fabric."""
    return device.brand in _CONSUMER_BRANDS or _is_named(device, _CONSUMER_WORDS)


def is_data_center(device: Device) -> bool:
    """Whether the GPU is made for servers (A100, H100): no consumer board, unified memory or vGPU."""
    if isinstance(device.name, Missing) or is_consumer(device) or is_virtual_gpu(device):
        return False
    if device.brand in _WORKSTATION_BRANDS or _is_named(device, _WORKSTATION_WORDS):
        return False
    return device.memory_kind == "dedicated"


def is_virtual_gpu(device: Device) -> bool:
    """Whether the GPU is a vGPU: a share of a GPU in a virtual machine."""
    name = "" if isinstance(device.name, Missing) else device.name
    return device.brand in _VIRTUAL_BRANDS or _VIRTUAL_NAME.search(name) is not None


def is_coherent(device: Device) -> bool:
    """Whether the kernel may use the GPU's memory, for its page cache too (vllm-project/vllm issue 35313)."""
    return _is_named(device, _COHERENT)


def _is_named(device: Device, words: tuple[str, ...]) -> bool:
    name = device.name
    return not isinstance(name, Missing) and any(word in name for word in words)
