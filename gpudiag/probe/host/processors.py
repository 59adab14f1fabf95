"""Where the processors are, which of them this process may use, and how they are clocked."""

from __future__ import annotations

import os
import re
from typing import Any

from gpudiag.probe.sheet import ERROR, SOURCE_ABSENT, Absent, Sheet

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
    for line in _text(os.path.join(root, "proc/self/status")).splitlines():
        name, _, value = line.partition(":")
        if name == "Cpus_allowed_list":
            return value.strip()
    raise Absent(ERROR, "no line 'Cpus_allowed_list'")


def _numa_nodes(root: str) -> list[dict[str, Any]]:
    directory = os.path.join(root, "sys/devices/system/node")
    numbers = sorted(int(found[1]) for name in os.listdir(directory) if (found := _NODE.fullmatch(name)))
    return [
        {"node": number, "processors": _text(os.path.join(directory, f"node{number}/cpulist")).strip()}
        for number in numbers
    ]


def _governors(root: str) -> list[str]:
    """Each governor in use, once.

    Raises:
        Absent: no processor's frequency can be chosen, as in most virtual machines.
    """
    directory = os.path.join(root, "sys/devices/system/cpu")
    found = set()
    for name in os.listdir(directory):
        path = os.path.join(directory, name, "cpufreq/scaling_governor")
        if _PROCESSOR.fullmatch(name) and os.path.exists(path):
            found.add(_text(path).strip())
    if not found:
        raise Absent(SOURCE_ABSENT, "no processor's frequency can be set here")
    return sorted(found)


def _is_virtual(root: str) -> bool:
    """Whether a hypervisor shows, in sysfs, in the device tree (Arm) or in the processor's flags (x86)."""
    if os.path.exists(os.path.join(root, "sys/hypervisor/type")):
        return True
    if os.path.exists(os.path.join(root, "proc/device-tree/hypervisor")):
        return True
    with open(os.path.join(root, "proc/cpuinfo"), errors="replace") as file:
        head = file.read(_CPUINFO_BYTES)
    return any(line.startswith("flags") and "hypervisor" in line.split() for line in head.splitlines())


def _text(path: str) -> str:
    with open(path) as file:
        return file.read()
