"""How the host is set up and how it is doing: what only a judgement of the host needs.

Run in a guarded child: asking a network file system or a name server can block forever. Each topic is
read in a thread of its own and sent when it is done, so that one that hangs costs only itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from threading import Thread
from typing import Any

from gpudiag.probe.host.infiniband import read_infiniband_ports
from gpudiag.probe.host.limits import (
    read_cgroup,
    read_filesystems,
    read_process_limits,
    read_shared_memory_available,
)
from gpudiag.probe.host.pci import read_redirecting_bridges
from gpudiag.probe.host.processors import read_processor_layout
from gpudiag.probe.host.services import read_clock, read_fabric_manager
from gpudiag.probe.host.settings import read_name_addresses, read_settings, read_user
from gpudiag.probe.sheet import NOT_SUPPORTED, SOURCE_ABSENT, Absent, Sheet

Emit = Callable[[Any], None]

_IOMMU_GROUPS = "sys/kernel/iommu_groups"


def stream_host_state(emit: Emit, root: str = "/", environment: Mapping[str, str] | None = None) -> None:
    """Send ("topic", {...}) for every field of model.HostState: a sheet's document with that field."""
    threads = [
        Thread(target=_send, args=(emit, name, read), daemon=True)
        for name, read in _topics(root, os.environ if environment is None else environment)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _topics(root: str, environment: Mapping[str, str]) -> tuple[tuple[str, Callable[[], Any]], ...]:
    return (
        ("user", lambda: read_user(root)),
        ("shared_memory_available_bytes", lambda: read_shared_memory_available(root)),
        ("process_limits", lambda: read_process_limits(root)),
        ("cgroup", lambda: read_cgroup(root)),
        ("processor_layout", lambda: read_processor_layout(root)),
        ("filesystems", lambda: read_filesystems(root, environment)),
        ("clock", lambda: read_clock(root)),
        ("memory_errors", lambda: read_memory_errors(root)),
        ("iommu", lambda: read_iommu(root)),
        ("redirecting_bridges", lambda: read_redirecting_bridges(root)),
        ("name_addresses", lambda: read_name_addresses(root)),
        ("infiniband_ports", lambda: read_infiniband_ports(root)),
        ("fabric_manager", lambda: read_fabric_manager(root)),
        ("settings", lambda: read_settings(root, environment)),
    )


def _send(emit: Emit, name: str, read: Callable[[], Any]) -> None:
    sheet = Sheet()
    sheet.read(name, read)
    emit(("topic", sheet.document()))


def read_memory_errors(root: str = "/") -> dict[str, int]:
    """Corrected and uncorrected errors over all memory controllers (kernel documentation, EDAC).

    Raises:
        FileNotFoundError: the kernel monitors no memory controller.
    """
    directory = os.path.join(root, "sys/devices/system/edac/mc")
    controllers = [name for name in os.listdir(directory) if name.startswith("mc")]
    if not controllers:
        raise Absent(SOURCE_ABSENT, "the kernel monitors no memory controller")
    return {
        field: sum(int(_line(directory, f"{controller}/{file}")) for controller in controllers)
        for field, file in (("corrected", "ce_count"), ("uncorrected", "ue_count"))
    }


def read_iommu(root: str = "/") -> dict[str, Any]:
    """How many IOMMU groups there are, and the kinds of domain that NVIDIA functions are in.

    Raises:
        FileNotFoundError: the kernel knows no IOMMU.
    """
    directory = os.path.join(root, _IOMMU_GROUPS)
    groups = os.listdir(directory)
    if not groups:
        raise Absent(NOT_SUPPORTED, "the IOMMU is off, or there is none")
    kinds = {
        _line(directory, f"{group}/type")
        for group in groups
        if _holds_gpu(root, os.path.join(directory, group))
    }
    return {"groups": len(groups), "kinds": sorted(kinds)}


def _holds_gpu(root: str, group: str) -> bool:
    devices = os.listdir(os.path.join(group, "devices"))
    bus = os.path.join(root, "sys/bus/pci/devices")
    return any(_is_nvidia_display(os.path.join(bus, device)) for device in devices)


def _is_nvidia_display(directory: str) -> bool:
    try:
        return _line(directory, "vendor") == "0x10de" and _line(directory, "class").startswith("0x03")
    except FileNotFoundError:  # not a PCI device
        return False


def _line(directory: str, name: str) -> str:
    with open(os.path.join(directory, name)) as file:
        return file.read().strip()
