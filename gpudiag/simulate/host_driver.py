"""What the NVIDIA kernel driver shows of itself: /proc/driver/nvidia, /proc/modules, /dev."""

from gpudiag.simulate.blueprint import Blueprint, GpuBlueprint

_BUILDS = {
    "open": "NVIDIA UNIX Open Kernel Module for {architecture}  {version}  Release Build  (buildhost)",
    "proprietary": "NVIDIA UNIX {architecture} Kernel Module  {version}  Release Build",
}
# The driver writes question marks for what it has not read from a GPU that it could not start.
_UNREAD_UUID = "GPU-????????-????-????-????-????????????"
_UNREAD_VBIOS = "??.??.??.??.??"


def driver_build(blueprint: Blueprint) -> str:
    """The driver's name and version as it writes them, in the kernel log and under /proc."""
    host = blueprint.host
    return _BUILDS[host.kernel_driver_flavor].format(
        architecture=host.processor_architecture, version=host.kernel_driver_version
    )


def render_driver(blueprint: Blueprint) -> dict[str, str]:
    """The driver's files; /proc/modules always, /proc/driver/nvidia where it is loaded."""
    host = blueprint.host
    files = {
        "proc/modules": "".join(f"{name} 65536 1 - Live 0x0000000000000000\n" for name in host.kernel_modules)
    }
    if host.kernel_driver_version is None:
        return files
    files["proc/driver/nvidia/version"] = (
        f"NVRM version: {driver_build(blueprint)}  Wed Oct 29 22:12:39 UTC 2025\n"
        "GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)\n"
    )
    files["sys/module/nvidia/version"] = f"{host.kernel_driver_version}\n"
    for gpu in _known_to_driver(blueprint):
        files[f"proc/driver/nvidia/gpus/{gpu.sysfs_address}/information"] = _information(gpu, blueprint)
    return files


def device_nodes(blueprint: Blueprint) -> tuple[str, ...]:
    """The names under /dev that concern GPUs: /dev/nvidiaN for each GPU, and the driver's own."""
    if blueprint.host.kernel_driver_version is None:
        return blueprint.host.device_nodes
    minors = (gpu.gpu.minor_number for gpu in _known_to_driver(blueprint))
    return (*(f"nvidia{minor}" for minor in minors if minor is not None), *blueprint.host.device_nodes)


def _known_to_driver(blueprint: Blueprint) -> list[GpuBlueprint]:
    """The GPUs with a device node and a /proc entry: in a container, those that it was given."""
    return [gpu for gpu in blueprint.gpus if gpu.on_bus and (gpu.gpu.visible or not gpu.initialized)]


def _information(gpu: GpuBlueprint, blueprint: Blueprint) -> str:
    readings = gpu.kernel_view
    lines = {
        "Model": readings.get("name", "Unknown"),
        "IRQ": 130 + (gpu.gpu.minor_number or 0),
        "GPU UUID": readings.get("uuid", _UNREAD_UUID) if gpu.initialized else _UNREAD_UUID,
        "Video BIOS": readings.get("vbios_version", _UNREAD_VBIOS).lower()
        if gpu.initialized
        else _UNREAD_VBIOS,
        "Bus Type": "PCIe",
        "DMA Size": "47 bits",
        "DMA Mask": "0x7fffffffffff",
        "Bus Location": gpu.sysfs_address,
        "Device Minor": gpu.gpu.minor_number,
        "GPU Firmware": blueprint.host.kernel_driver_version,
        "GPU Excluded": "No",
    }
    return "".join(f"{name + ':':<16} {value}\n" for name, value in lines.items())
