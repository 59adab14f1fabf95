"""The NVIDIA kernel driver's files, and the kernel log that it writes to."""

from gpudiag.simulate.blueprint import Blueprint, GpuBlueprint, KernelLine

_BUILDS = {
    "open": "NVIDIA UNIX Open Kernel Module for {architecture}  {version}  Release Build  (buildhost)",
    "proprietary": "NVIDIA UNIX {architecture} Kernel Module  {version}  Release Build",
}
# The driver writes question marks for what it has not read from a GPU that it could not start.
_UNREAD_UUID = "GPU-????????-????-????-????-????????????"
_UNREAD_VBIOS = "??.??.??.??.??"

_DRIVER_LOADED_AT_SECONDS = 12.4
_ERROR = 3

# What the driver prints after the number of an Xid. https://docs.nvidia.com/deploy/xid-errors, and
# public kernel logs of drivers 525 to 580.
_XID_TEXTS = {
    13: "Graphics SM Warp Exception on (GPC 0, TPC 2, SM 1): Out Of Range Address",
    31: "Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7f1a_2c000000. "
    "Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ",
    43: "Ch 00000010",
    45: "Ch 00000008",
    48: "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at partition 3, "
    "subpartition 0.",
    62: "2cbc 5f0d 7a12 0000 0000 0000 0000 0000",
    63: "Row Remapper: New row marked for remapping, reset gpu to activate.",
    64: "Row Remapper: Failed to remap row, contact support.",
    74: "NVLink: fatal error detected on link 0(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)",
    79: "GPU has fallen off the bus.",
    92: "High single-bit ECC error rate",
    94: "Contained: SM (0x1). RST: No, D-RST: No",
    95: "Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No",
    119: "Timeout after 6s of waiting for RPC response from GPU0 GSP! Expected function 76 (GSP_RM_CONTROL) "
    "(0x20802a02 0x4).",
}
_PAGE_RETIREMENT_TEXT = "Dynamic Page Retirement: New page retired, reboot to activate (0x00000000000f3a2b)."


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


def xid_line(gpu: GpuBlueprint, code: int, age_seconds: float, text: str | None = None) -> KernelLine:
    """The line that the driver logs for an Xid on that GPU; without text where the code is unknown."""
    if text is None and code == 63 and "retired_pages_uncorrected" in gpu.gpu.readings:
        text = _PAGE_RETIREMENT_TEXT
    words = _XID_TEXTS.get(code, "") if text is None else text
    where = gpu.sysfs_address.rsplit(".", 1)[0]
    line = f"NVRM: Xid (PCI:{where}): {code}, pid='<unknown>', name=<unknown>"
    return KernelLine(age_seconds, f"{line}, {words}" if words else line, _ERROR)


def render_kernel_log(blueprint: Blueprint) -> dict[str, str]:
    """/dev/kmsg, oldest record first; a container has none."""
    host = blueprint.host
    if host.container_runtime is not None:
        return {}
    moments = [(0.0, KernelLine(0.0, f"Linux version {host.kernel_release}", 5)), *_driver_lines(blueprint)]
    for line in blueprint.kernel_log:
        moments.append((max(_DRIVER_LOADED_AT_SECONDS, host.uptime_seconds - line.age_seconds), line))
    moments.sort(key=lambda moment: moment[0])
    records = (
        f"{line.level},{number},{int(seconds * 1e6)},-;{line.text}\n"
        for number, (seconds, line) in enumerate(moments)
    )
    return {"dev/kmsg": "".join(records)}


def _driver_lines(blueprint: Blueprint) -> list[tuple[float, KernelLine]]:
    """What the driver logs when it is loaded, each line with its seconds since boot."""
    if blueprint.host.kernel_driver_version is None:
        return []
    texts = [f"NVRM: loading {driver_build(blueprint)}"]
    texts += [
        f"nvidia {gpu.sysfs_address}: enabling device (0140 -> 0142)"
        for gpu in blueprint.gpus
        if gpu.on_bus and gpu.kernel_driver == "nvidia"
    ]
    return [(_DRIVER_LOADED_AT_SECONDS, KernelLine(0.0, text)) for text in texts]
