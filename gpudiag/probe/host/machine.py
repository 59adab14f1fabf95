"""Facts about the machine around the GPUs as plain data, read under one root.

Run in a guarded child: a faulty network card or PCI bus can block a read of its files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

from gpudiag.linux.proc import read_line, read_text
from gpudiag.model.number_ranges import order_of_name
from gpudiag.model.untrusted_text import escape_controls
from gpudiag.probe.host.interfaces import read_interfaces
from gpudiag.probe.host.pci import read_kernel_driver, read_pci_devices
from gpudiag.probe.host.processes import read_container, read_job_cgroup
from gpudiag.probe.sheet import ERROR, NOT_SUPPORTED, SOURCE_ABSENT, Absent, Sheet, reason_of
from gpudiag.units import KIB, parse_size_bytes

_CPUINFO_BYTES = 4096  # enough for the first processor; the rest costs an interrupt each on a large host
_MODEL_NAMES = ("model name", "Model", "Processor")  # x86; boards of other architectures
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - no temporary file: the mount itself is the subject
_DEVICE_NODE = re.compile(r"nvidia(?:\d+|ctl|-modeset|-uvm|-uvm-tools|-nvswitchctl|-nvswitch\d+)|dxg")
# ib_umad and mlx5_ib: the switches of NVLink 5 are managed over InfiniBand.
_MODULE = re.compile(r"nvidia(?:_\w+)?|nouveau|nova_core|nova_drm|ib_umad|mlx5_ib")


def stream_machine(emit: Callable[[Any], None], root: str = "/") -> None:
    """Send ("machine", {...}): every fact about the machine, as a sheet's document."""
    emit(("machine", read_machine(root)))


def read_machine(root: str = "/") -> dict[str, Any]:
    """Every field of model.host.Machine but the allocation, each a value or the reason for none."""
    sheet = Sheet(reason_of)
    sheet.read("hostname", lambda: escape_controls(read_line(root, "proc/sys/kernel/hostname")))
    sheet.read("kernel_release", read_line, root, "proc/sys/kernel/osrelease")
    sheet.read("operating_system", lambda: parse_os_release(read_text(root, "etc/os-release")))
    sheet.read("boot_id", read_line, root, "proc/sys/kernel/random/boot_id")
    _read_processor(root, sheet)
    _read_memory(root, sheet)
    sheet.read_together(("kernel_driver_version", "kernel_driver_flavor"), read_kernel_driver, root)
    sheet.read("kernel_modules", lambda: parse_modules(read_text(root, "proc/modules")))
    sheet.read("pci_devices", read_pci_devices, root)
    sheet.read("device_nodes", _device_nodes, root)
    sheet.read("interfaces", read_interfaces, root)
    sheet.values["container"] = read_container(root)
    sheet.read("job_cgroup", read_job_cgroup, root)
    sheet.read("preloaded_libraries", _preloaded, root)
    sheet.read("memory_only_nodes_used_bytes", read_memory_only_nodes, root)
    return sheet.document()


def _read_processor(root: str, sheet: Sheet) -> None:
    sheet.read("processor", _processor, root)
    sheet.read("processor_architecture", _architecture, root)
    sheet.read("logical_processors", lambda: count_in_list(read_line(root, "sys/devices/system/cpu/online")))
    sheet.read(
        "logical_processors_allowed",
        lambda: count_in_list(_field(read_text(root, "proc/self/status"), "Cpus_allowed_list")),
    )


def _read_memory(root: str, sheet: Sheet) -> None:
    sheet.read("memory_total_bytes", lambda: parse_meminfo(read_text(root, "proc/meminfo"), "MemTotal"))
    sheet.read(
        "memory_available_bytes", lambda: parse_meminfo(read_text(root, "proc/meminfo"), "MemAvailable")
    )
    sheet.read("shared_memory_total_bytes", _shared_memory, root)


def parse_os_release(text: str) -> str:
    """The distribution's name for people, PRETTY_NAME of os-release(5)."""
    for line in text.splitlines():
        name, _, value = line.partition("=")
        if name == "PRETTY_NAME":
            return value.strip().strip("\"'")
    raise Absent(NOT_SUPPORTED, "no PRETTY_NAME in os-release")


def _processor(root: str) -> str:
    with open(os.path.join(root, "proc/cpuinfo"), errors="replace") as file:
        text = file.read(_CPUINFO_BYTES)
    for name in _MODEL_NAMES:
        try:
            return _field(text, name)
        except Absent:
            continue
    raise Absent(NOT_SUPPORTED, "/proc/cpuinfo names no model")


def _architecture(root: str) -> str:
    """The machine's architecture; under another root, by names in its /proc/version and /proc/cpuinfo."""
    if root == "/":
        return os.uname().machine
    text = read_text(root, "proc/version") + read_text(root, "proc/cpuinfo")[:_CPUINFO_BYTES]
    for architecture, mark in (
        ("aarch64", r"aarch64|CPU implementer"),
        ("x86_64", r"x86_64|amd64|vendor_id"),
    ):
        if re.search(mark, text):
            return architecture
    raise Absent(SOURCE_ABSENT, "nothing under this root names it")


def count_in_list(text: str) -> int:
    """How many processors a kernel list such as `0-3,8,10-11` names."""
    ranges = [part.partition("-") for part in text.strip().split(",") if part]
    return sum(int(last or first) - int(first) + 1 for first, _, last in ranges)


def parse_meminfo(text: str, field: str) -> int:
    """Bytes of one field of /proc/meminfo, whose kB are KiB."""
    return int(_field(text, field).split()[0]) * KIB


def _shared_memory(root: str) -> int:
    """The size of /dev/shm in bytes: from the kernel here, from the mount's options under another root."""
    if root == "/":
        shm = os.statvfs(_SHARED_MEMORY)
        return shm.f_blocks * shm.f_frsize
    for line in read_text(root, "proc/mounts").splitlines():
        words = line.split()
        if len(words) > 3 and words[1] == _SHARED_MEMORY:
            sizes = [option for option in words[3].split(",") if option.startswith("size=")]
            if sizes:
                return parse_size_bytes(sizes[0].removeprefix("size="))
            return parse_meminfo(read_text(root, "proc/meminfo"), "MemTotal") // 2  # tmpfs(5), "size"
    raise Absent(SOURCE_ABSENT, f"{_SHARED_MEMORY} is not mounted")


def parse_modules(text: str) -> list[str]:
    """The loaded kernel modules that concern GPUs, in the order of /proc/modules."""
    names = (line.split(" ", 1)[0] for line in text.splitlines())
    return [name for name in names if _MODULE.fullmatch(name)]


def _device_nodes(root: str) -> list[str]:
    """The GPU device nodes, `/dev/nvidia0` and so on, in the order of their numbers."""
    names = [name for name in os.listdir(os.path.join(root, "dev")) if _DEVICE_NODE.fullmatch(name)]
    return [f"/dev/{name}" for name in sorted(names, key=order_of_name)]


def _preloaded(root: str) -> list[str]:
    """The libraries that ld.so(8) loads into every program; most machines have no such file."""
    try:
        text = read_text(root, "etc/ld.so.preload")
    except FileNotFoundError:
        return []
    return [
        word for line in text.splitlines() for word in re.split(r"[\s:]+", line.partition("#")[0]) if word
    ]


def read_memory_only_nodes(root: str = "/") -> int:
    """Bytes in use on NUMA nodes without a processor, page cache included: GPUs' memory on GH200 and GB200.

    Source: NVIDIA, "Understanding Memory Management on Hardware-Coherent Platforms", 2025.

    Raises:
        Absent: there is no such node.
    """
    directory = "sys/devices/system/node"
    with_memory, with_processors = (_nodes(root, f"{directory}/{name}") for name in ("has_memory", "has_cpu"))
    if with_memory == with_processors:
        raise Absent(NOT_SUPPORTED, "every NUMA node with memory has processors")
    from gpudiag.model.host_state import parse_processor_list  # few machines need it

    alone = parse_processor_list(with_memory) - parse_processor_list(with_processors)
    used = [
        re.search(r"MemUsed:\s+(\d+) kB", read_text(root, f"{directory}/node{node}/meminfo"))
        for node in alone
    ]
    return sum(int(found[1]) * KIB for found in used if found)


def _nodes(root: str, name: str) -> str:
    try:
        return read_line(root, name)
    except FileNotFoundError:  # a kernel without NUMA
        return ""


def _field(text: str, name: str) -> str:
    """The value behind `name:` in a file of such lines. Raises Absent: there is no such line."""
    for line in text.splitlines():
        found, _, value = line.partition(":")
        if found.strip() == name:
            return value.strip()
    raise Absent(ERROR, f"no line {name!r}")
