"""How the host is set up and how it is doing: what only a judgement of the host needs.

Run in a guarded child, a thread for each topic: a file system or name server that hangs costs its topic.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import re
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import Thread
from typing import Any

from gpudiag.linux.proc import read_line, read_text
from gpudiag.model.untrusted_text import mask_text
from gpudiag.probe.host.interfaces import read_infiniband_ports
from gpudiag.probe.host.limits import (
    read_cgroup,
    read_filesystems,
    read_process_limits,
    read_shared_memory_available,
)
from gpudiag.probe.host.pci import read_redirecting_bridges
from gpudiag.probe.host.pci_places import read_pci_places
from gpudiag.probe.sheet import ERROR, NOT_SUPPORTED, SOURCE_ABSENT, Absent, Sheet

# --- processors

_CPUINFO_BYTES = 8192  # enough for the first processor's flags
_NODE = re.compile(r"node(\d+)")
_PROCESSOR = re.compile(r"cpu\d+")


def read_processor_layout(root: str = "/") -> dict[str, Any]:
    """A sheet's document of model.ProcessorLayout."""
    sheet = Sheet()
    sheet.read("allowed", _allowed, root)
    sheet.read("numa_nodes", _numa_nodes, root)
    sheet.read("governors", _governors, root)
    sheet.values["virtual_machine"] = _is_virtual(root)
    return sheet.document()


def _allowed(root: str) -> str:
    for line in read_text(os.path.join(root, "proc/self/status")).splitlines():
        name, _, value = line.partition(":")
        if name == "Cpus_allowed_list":
            return value.strip()
    raise Absent(ERROR, "no line 'Cpus_allowed_list'")


def _numa_nodes(root: str) -> list[dict[str, Any]]:
    directory = os.path.join(root, "sys/devices/system/node")
    numbers = sorted(int(found[1]) for name in os.listdir(directory) if (found := _NODE.fullmatch(name)))
    return [
        {"node": number, "processors": read_text(os.path.join(directory, f"node{number}/cpulist")).strip()}
        for number in numbers
    ]


def _governors(root: str) -> list[str]:
    """Each governor in use, once. Raises Absent: no frequency can be chosen, as in most virtual machines."""
    directory = os.path.join(root, "sys/devices/system/cpu")
    found = set()
    for name in os.listdir(directory):
        path = os.path.join(directory, name, "cpufreq/scaling_governor")
        if _PROCESSOR.fullmatch(name) and os.path.exists(path):
            found.add(read_text(path).strip())
    if not found:
        raise Absent(SOURCE_ABSENT, "no processor's frequency can be set here")
    return sorted(found)


# What the firmware's tables name as vendor or product of a virtual machine. On Arm nothing else shows it
# (systemd issue 18929, pull requests 20998 and 43347); a cloud's machine without a hypervisor has the same
# vendor, and `metal` in its product.
_VIRTUAL_VENDORS = (
    "QEMU",
    "KVM",
    "KubeVirt",
    "OpenStack",
    "VMware",
    "VirtualBox",
    "innotek GmbH",
    "Xen",
    "Bochs",
    "Parallels",
    "BHYVE",
    "Apple Virtualization",
    "Nutanix AHV",
    "Amazon EC2",
    "Google Compute Engine",
    "Alibaba Cloud ECS",
)
_HYPER_V = ("Microsoft Corporation", "Virtual Machine")


def _is_virtual(root: str) -> bool:
    """Whether a hypervisor shows: in sysfs, processor flags (x86), device tree or firmware tables (Arm)."""
    if os.path.exists(os.path.join(root, "sys/hypervisor/type")):
        return True
    if os.path.exists(os.path.join(root, "proc/device-tree/hypervisor")):
        return True
    with open(os.path.join(root, "proc/cpuinfo"), errors="replace") as file:
        head = file.read(_CPUINFO_BYTES)
    flags = [line for line in head.splitlines() if line.startswith("flags")]
    return any("hypervisor" in line.split() for line in flags) if flags else _firmware_is_virtual(root)


def _firmware_is_virtual(root: str) -> bool:
    """Whether the firmware's tables (SMBIOS) name a virtual machine."""
    names = []
    for name in ("sys_vendor", "product_name"):
        with suppress(OSError):
            names.append(read_text(os.path.join(root, "sys/class/dmi/id", name)).strip())
    if tuple(names) == _HYPER_V:
        return True
    named = any(one.startswith(_VIRTUAL_VENDORS) for one in names)
    return named and not any("metal" in one.lower() for one in names)


# --- services

_TIMEX_BYTES = 512  # more than sizeof(struct timex) anywhere; with modes = 0 the call only reads
_TIME_ERROR = 5  # adjtimex(2): the clock is not synchronized
_SYNCHRONIZED_FILE = "run/systemd/timesync/synchronized"

# The kernel keeps 15 characters of a program's name. Reading `comm` cannot block, as `cmdline` can.
_COMMAND = "nv-fabricmanager"[:15]
_LOG = "var/log/fabricmanager.log"
_LOG_BYTES = 1 << 20  # read from its end
_VERSION = re.compile(rb"fabric manager version\D{0,8}(\d+\.[\d.]+\d)", re.IGNORECASE)


def read_clock(root: str = "/") -> dict[str, Any]:
    """A sheet's document of model.ClockState."""
    directory = os.path.join(root, "sys/devices/system/clocksource/clocksource0")
    sheet = Sheet()
    sheet.read("source", read_line, directory, "current_clocksource")
    sheet.read("sources_available", lambda: read_line(directory, "available_clocksource").split())
    sheet.read("synchronized", _is_synchronized, root)
    return sheet.document()


def _is_synchronized(root: str) -> bool:
    """Whether the clock is synchronized: adjtimex(2); under another root, systemd-timesyncd's file.

    Raises:
        Absent: nothing under this root shows it.
    """
    if root != "/":
        if os.path.exists(os.path.join(root, _SYNCHRONIZED_FILE)):
            return True
        raise Absent(SOURCE_ABSENT, "nothing under this root shows it")
    adjtimex = ctypes.CDLL(None, use_errno=True).adjtimex
    state: int = adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    if state < 0:
        raise OSError(ctypes.get_errno(), "adjtimex")
    return state != _TIME_ERROR


def read_fabric_manager(root: str = "/") -> dict[str, Any]:
    """A sheet's document of model.FabricManager."""
    sheet = Sheet()
    pids = (name for name in os.listdir(os.path.join(root, "proc")) if name.isdecimal())
    sheet.values["running"] = any(_command(root, pid) == _COMMAND for pid in pids)
    sheet.read("version", _version, root)
    return sheet.document()


def _command(root: str, pid: str) -> str:
    try:
        with open(os.path.join(root, "proc", pid, "comm")) as file:
            return file.read().strip()
    except OSError:  # it has just ended, or is hidden from this user
        return ""


def _version(root: str) -> str:
    """The version that the fabric manager logged at its last start. Raises Absent: it logged none."""
    with open(os.path.join(root, _LOG), "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_BYTES))
        found = _VERSION.findall(file.read())
    if not found:
        raise Absent(ERROR, f"/{_LOG} names no version")
    return str(found[-1].decode())


# --- settings

_PREFIXES = ("NCCL_", "TORCH_", "PYTORCH_", "CUDA_", "GLOO_", "NSIGHT_", "OMP_", "TP_SOCKET_", "CUBLAS_")
_NAMES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "LD_LIBRARY_PATH",
    "SLURM_NNODES",
    "SLURM_JOB_NUM_NODES",
    "LD_PRELOAD",
)
# NCCL's pre-shared key; tokens and keys of hubs that share a prefix with us.
_SECRET_WORDS = ("TOKEN", "KEY", "SECRET", "PASSWORD", "PSK")
_SET = "(set)"

_SIMULATED_USER = "ann"  # the user whose jobs run on simulated machines


def read_settings(root: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """A document of model.Settings: the variables with these prefixes or names, and NCCL's files."""
    sheet = Sheet()
    sheet.values["environment"] = {
        name: _shown(name, value)
        for name, value in sorted(environment.items())
        if name.startswith(_PREFIXES) or name in _NAMES
    }
    sheet.read("nccl_files", _nccl_files, root, environment)
    return sheet.document()


def _nccl_files(root: str, environment: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """The settings of each file that NCCL reads (its guide, "Environment Variables"), by the file's path."""
    users = environment.get("NCCL_CONF_FILE") or os.path.join(environment.get("HOME", "/root"), ".nccl.conf")
    found = {}
    for path in (users, "/etc/nccl.conf"):
        try:
            with open(os.path.join(root, path.lstrip("/"))) as file:
                found[path] = parse_nccl_file(file.read())
        except FileNotFoundError:
            continue
    return found


def parse_nccl_file(text: str) -> dict[str, str]:
    """The settings of a file of `NAME=value` lines; lines that start with # are comments."""
    rows = (line.partition("=") for line in text.splitlines() if line and not line.startswith("#"))
    return {name: _shown(name, value) for name, equals, value in rows if equals}


def _shown(name: str, value: str) -> str:
    """The value with secrets masked; `(set)` where the name marks it as a secret."""
    return _SET if any(word in name.upper() for word in _SECRET_WORDS) else mask_text(value)


def read_user(root: str = "/") -> str:
    """The name of the user that this process runs as, or its number where it has no name."""
    if root != "/":
        return _SIMULATED_USER
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def read_name_addresses(root: str = "/") -> list[str]:
    """The addresses of the host's own name, as ranks use them. Raises Absent: it does not resolve."""
    if root != "/":
        return _in_hosts_file(root)
    name = socket.gethostname()
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise Absent(SOURCE_ABSENT, f"{name} does not resolve: {error.strerror}") from None
    return sorted({str(address[4][0]) for address in found})


def _in_hosts_file(root: str) -> list[str]:
    """The same from the host tree's /etc/hosts, the only source there."""
    with open(os.path.join(root, "proc/sys/kernel/hostname")) as file:
        name = file.read().strip()
    with open(os.path.join(root, "etc/hosts")) as file:
        rows = [line.partition("#")[0].split() for line in file]
    found = sorted({row[0] for row in rows if name in row[1:]})
    if not found:
        raise Absent(SOURCE_ABSENT, f"{name} does not resolve: it is not in /etc/hosts")
    return found


# --- all of it

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
        ("pci_places", lambda: read_pci_places(root)),
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
        field: sum(int(read_line(directory, f"{controller}/{file}")) for controller in controllers)
        for field, file in (("corrected", "ce_count"), ("uncorrected", "ue_count"))
    }


def read_iommu(root: str = "/") -> dict[str, Any]:
    """How many IOMMU groups there are, and NVIDIA functions' domains. Raises FileNotFoundError: no IOMMU."""
    directory = os.path.join(root, _IOMMU_GROUPS)
    groups = os.listdir(directory)
    if not groups:
        raise Absent(NOT_SUPPORTED, "the IOMMU is off, or there is none")
    kinds = {
        read_line(directory, f"{group}/type")
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
        return read_line(directory, "vendor") == "0x10de" and read_line(directory, "class").startswith("0x03")
    except FileNotFoundError:  # not a PCI device
        return False
