"""Where GPUs, NVSwitches and network cards are on the PCI bus: the bridges above each, and what is near it.

Source: kernel documentation, ABI/testing/sysfs-bus-pci and sysfs-class-infiniband.
"""

from __future__ import annotations

import os
import re
from typing import Any

from gpudiag.linux.proc import read_line
from gpudiag.model.number_ranges import order_of_name
from gpudiag.probe.host.pci import parse_generation, parse_numa_node, parse_width, read_link_line
from gpudiag.probe.sheet import NOT_ASKED, Sheet, reason_of
from gpudiag.probe.sleeping import ASLEEP, bus_id_of_address, is_asleep

_NVIDIA = "0x10de"
# PCI class codes ("PCI Code and ID Assignment"): display; other bridge, which an NVSwitch is; network.
_DISPLAY, _OTHER_BRIDGE, _NETWORK = "0x03", "0x0680", "0x02"
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def read_pci_places(root: str = "/") -> list[dict[str, Any]]:
    """One sheet's document of model.PciPlace for each GPU, NVSwitch and network card, by bus id.

    Raises:
        FileNotFoundError: the machine shows no PCI bus (WSL, some virtual machines).
    """
    bus = os.path.join(root, "sys/bus/pci/devices")
    rdma, interfaces = (_by_address(os.path.join(root, "sys/class", kind)) for kind in ("infiniband", "net"))
    found = []
    for address in sorted(os.listdir(bus)):
        folder = os.path.realpath(os.path.join(bus, address))
        kind = _kind(read_line(folder, "vendor"), read_line(folder, "class"))
        if kind is None and address in rdma:
            kind = "nic"
        if kind is not None:
            found.append(_place(folder, kind, rdma.get(address, []), interfaces.get(address, [])))
    return found


def _kind(vendor: str, class_id: str) -> str | None:
    if vendor == _NVIDIA and class_id.startswith(_DISPLAY):
        return "gpu"
    if vendor == _NVIDIA and class_id.startswith(_OTHER_BRIDGE):
        return "nvswitch"
    return "nic" if class_id.startswith(_NETWORK) else None


def _place(folder: str, kind: str, rdma: list[str], interfaces: list[str]) -> dict[str, Any]:
    address = os.path.basename(folder)
    root, bridges = _above(folder)
    sheet = Sheet(reason_of)
    sheet.values.update(
        bus_id=bus_id_of_address(address),
        kind=kind,
        root=root,
        bridges=bridges,
        rdma_devices=rdma,
        interfaces=interfaces,
    )
    sheet.values["virtual_function"] = os.path.lexists(os.path.join(folder, "physfn"))
    sheet.read("numa_node", lambda: parse_numa_node(read_line(folder, "numa_node")))
    sheet.read("processors", read_line, folder, "local_cpulist")
    if is_asleep(folder):  # newer kernels wake it to read these files
        sheet.mark("link_generation", NOT_ASKED, ASLEEP)
        sheet.mark("link_width", NOT_ASKED, ASLEEP)
    else:
        sheet.read("link_generation", lambda: parse_generation(read_link_line(folder, "current_link_speed")))
        sheet.read("link_width", lambda: parse_width(read_link_line(folder, "current_link_width")))
    return sheet.document()


def _above(folder: str) -> tuple[str, list[str]]:
    """The host bridge by the kernel's name, `pci0000:50`, and the bus ids of the bridges below it."""
    bridges: list[str] = []
    above = os.path.dirname(folder)
    while _ADDRESS.fullmatch(os.path.basename(above)):
        bridges.insert(0, bus_id_of_address(os.path.basename(above)))
        above = os.path.dirname(above)
    return os.path.basename(above), bridges


def _by_address(directory: str) -> dict[str, list[str]]:
    """The names in a folder of /sys/class by PCI address; a subfunction has its function's."""
    found: dict[str, list[str]] = {}
    try:
        names = sorted(os.listdir(directory), key=order_of_name)
    except FileNotFoundError:  # no such driver is loaded
        return found
    for name in names:
        parts = os.path.realpath(os.path.join(directory, name, "device")).split(os.sep)
        address = next((part for part in reversed(parts) if _ADDRESS.fullmatch(part)), None)
        if address is not None:
            found.setdefault(address, []).append(name)
    return found
