"""The NVIDIA functions on the PCI bus, by the kernel and NVIDIA's driver, and the bridges above them."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Iterator
from typing import Any

from gpudiag.linux.proc import read_line, read_text
from gpudiag.probe.sheet import (
    ERROR,
    NO_PERMISSION,
    NOT_ASKED,
    NOT_SUPPORTED,
    SOURCE_ABSENT,
    Absent,
    Sheet,
    reason_of,
)
from gpudiag.probe.sleeping import ASLEEP, bus_id_of_address, is_asleep

# --- the kernel's word

_OF_LINKS = (
    "link_generation",
    "link_width",
    "link_generation_max",
    "link_width_max",
    "slot_generation_max",
    "slot_width_max",
)

_NVIDIA = "10de"
# PCI class codes ("PCI Code and ID Assignment"): VGA, 3D controller, other bridge (an NVSwitch).
_CLASSES = ("0300", "0302", "0680")
# Gigatransfers per second of each PCIe generation (PCI Express Base Specification 6.0).
_GENERATION_OF_SPEED = {"2.5": 1, "5": 2, "5.0": 2, "8": 3, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}
_ERROR_FILES = (
    ("corrected", "aer_dev_correctable", "TOTAL_ERR_COR"),
    ("nonfatal", "aer_dev_nonfatal", "TOTAL_ERR_NONFATAL"),
    ("fatal", "aer_dev_fatal", "TOTAL_ERR_FATAL"),
)
_WIDTHS = (1, 2, 4, 8, 12, 16, 32)  # a link that is gone reads as 63 or 255

_PUBLIC_BYTES = 64  # what the kernel shows of the configuration space without CAP_SYS_ADMIN
# PCI Express Base Specification 6.0: extended capabilities start at 0x100; ACS is number 0x000d, its
# control register is at offset 6; bits 2 and 3 redirect peer requests and completions.
_EXTENDED = 0x100
_MAX_CAPABILITIES = 64  # a corrupt list may loop


def read_pci_devices(root: str = "/") -> list[dict[str, Any]]:
    """One sheet's document per GPU and NVSwitch on the bus, by bus id.

    Raises:
        FileNotFoundError: the machine shows no PCI bus (WSL, some virtual machines).
    """
    bus = os.path.join(root, "sys/bus/pci/devices")
    found = []
    for address in sorted(os.listdir(bus)):
        directory = os.path.join(bus, address)
        if read_line(directory, "vendor") == f"0x{_NVIDIA}":
            class_id = read_line(directory, "class").removeprefix("0x")[:4]
            if class_id in _CLASSES:
                found.append(_read_device(directory, address, class_id))
    return found


def _read_device(directory: str, address: str, class_id: str) -> dict[str, Any]:
    sheet = Sheet(reason_of)
    sheet.values.update(bus_id=bus_id_of_address(address), vendor_id=_NVIDIA, class_id=class_id)
    sheet.values["device_id"] = read_line(directory, "device").removeprefix("0x")
    sheet.values["virtual_function"] = os.path.lexists(os.path.join(directory, "physfn"))
    sheet.read("driver", _driver, directory)
    sheet.read("numa_node", lambda: parse_numa_node(read_line(directory, "numa_node")))
    if is_asleep(directory):  # newer kernels wake it to read these files
        for field in (*_OF_LINKS, *(f"errors_{kind}" for kind, *_ in _ERROR_FILES)):
            sheet.mark(field, NOT_ASKED, ASLEEP)
        return sheet.document()
    for prefix, place in (("link", directory), ("slot", os.path.dirname(os.path.realpath(directory)))):
        for limit in ("", "_max") if prefix == "link" else ("_max",):
            which = "max" if limit else "current"
            sheet.read(f"{prefix}_generation{limit}", _generation, place, f"{which}_link_speed")
            sheet.read(f"{prefix}_width{limit}", _width, place, f"{which}_link_width")
    for kind, file, total in _ERROR_FILES:
        sheet.read(
            f"errors_{kind}",
            lambda file=file, total=total: parse_error_total(read_text(directory, file), total),
        )
    return sheet.document()


def parse_error_total(text: str, name: str) -> int:
    """The total in a file of AER counts, lines of `NAME COUNT` (kernel docs, sysfs-bus-pci-devices-aer).

    Raises:
        Absent: it has no line of that name.
    """
    for line in text.splitlines():
        words = line.split()
        if words[:1] == [name] and len(words) == 2:
            return int(words[1])
    raise Absent(ERROR, f"no line {name!r}")


def _driver(directory: str) -> str:
    try:
        return os.path.basename(os.readlink(os.path.join(directory, "driver")))
    except FileNotFoundError:
        raise Absent(SOURCE_ABSENT, "no driver is bound to it") from None


def parse_numa_node(text: str) -> int:
    """The NUMA node of a device. Raises Absent: the kernel writes -1, as the firmware names none."""
    node = int(text)
    if node < 0:
        raise Absent(NOT_SUPPORTED, "the firmware names no NUMA node for it")
    return node


def _generation(directory: str, name: str) -> int:
    return parse_generation(read_link_line(directory, name))


def parse_generation(text: str) -> int:
    """The PCIe generation for the kernel's speed, `32.0 GT/s PCIe`.

    Raises:
        Absent: the kernel does not know the speed.
    """
    generation = _GENERATION_OF_SPEED.get(text.split()[0] if text.split() else "")
    if generation is None:
        raise Absent(ERROR, f"the kernel reports {text!r}")
    return generation


def _width(directory: str, name: str) -> int:
    return parse_width(read_link_line(directory, name))


def parse_width(text: str) -> int:
    """The number of lanes of a link. Raises Absent: PCIe has no such width (registers read all ones)."""
    width = int(text)
    if width not in _WIDTHS:
        raise Absent(ERROR, f"the kernel reports {width} lanes")
    return width


def read_link_line(directory: str, name: str) -> str:
    """The line of a file about the PCIe link of a device. Raises Absent: none is described there."""
    try:
        return read_line(directory, name)
    except FileNotFoundError:
        raise Absent(NOT_SUPPORTED, "no PCIe link is described there") from None


_NVIDIA_VENDOR, _DISPLAY = "0x10de", "0x03"
_ACS, _ACS_CONTROL, _REDIRECT = 0x000D, 6, 0x0C


def read_redirecting_bridges(root: str = "/") -> list[str]:
    """The bus ids of the bridges above NVIDIA GPUs that redirect peer traffic.

    Raises: Absent: NO_PERMISSION if only root sees the configuration space; NOT_SUPPORTED without a bridge
    (in a guest).
    """
    bridges = sorted(set(_bridges(os.path.join(root, "sys/bus/pci/devices"))))
    if not bridges:
        raise Absent(NOT_SUPPORTED, "no bridge above a GPU is visible")
    return [bus_id_of_address(os.path.basename(bridge)) for bridge in bridges if _redirects(bridge)]


def _bridges(bus: str) -> Iterator[str]:
    """The folders of all bridges between a GPU and its root."""
    for address in os.listdir(bus):
        folder = os.path.realpath(os.path.join(bus, address))
        if read_line(folder, "vendor") != _NVIDIA_VENDOR or not read_line(folder, "class").startswith(
            _DISPLAY
        ):
            continue
        above = os.path.dirname(folder)
        while os.path.exists(os.path.join(above, "config")):
            yield above
            above = os.path.dirname(above)


def _redirects(bridge: str) -> bool:
    with open(os.path.join(bridge, "config"), "rb") as file:
        space = file.read()
    if len(space) <= _PUBLIC_BYTES:
        raise Absent(NO_PERMISSION, "the kernel shows ACS settings to root only")
    return bool(parse_acs_control(space) & _REDIRECT)


def parse_acs_control(space: bytes) -> int:
    """The ACS control register in a configuration space; 0 without. Raises Absent: its list has no end."""
    at = _EXTENDED
    for _ in range(_MAX_CAPABILITIES):
        if at < _EXTENDED or at + 8 > len(space):
            return 0
        header: int = struct.unpack_from("<I", space, at)[0]
        if header & 0xFFFF == _ACS:
            control: int = struct.unpack_from("<H", space, at + _ACS_CONTROL)[0]
            return control
        at = header >> 20
    raise Absent(ERROR, "the list of PCIe capabilities loops")


# --- the driver's word

_VERSION = re.compile(r"NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s")
_UUID = re.compile(r"GPU UUID:\s+(GPU-[0-9a-fA-F-]+)\s")


def read_kernel_driver(root: str = "/") -> tuple[str, str]:
    """The version of the loaded kernel driver, and its flavor: `open` or `proprietary`.

    This file is plain text in the driver's memory; reading it cannot block.

    Raises:
        FileNotFoundError: the driver is not loaded.
    """
    with open(os.path.join(root, "proc/driver/nvidia/version")) as file:
        return parse_kernel_driver(file.read())


def parse_kernel_driver(text: str) -> tuple[str, str]:
    """Version and flavor in the text of /proc/driver/nvidia/version. Raises Absent: it names no version."""
    version = _VERSION.search(f"{text}\n")
    if version is None:
        raise Absent(ERROR, f"no version in {text[:80]!r}")
    return version[1], "open" if "Open Kernel Module" in text else "proprietary"


def stream_driver_gpus(emit: Callable[[Any], None], root: str = "/") -> None:
    """Send ("gpu", BUS_ID, UUID or None) for each GPU that the driver knows.

    Run in a guarded child: these files take the driver's locks, which a hung GPU may hold.
    """
    directory = os.path.join(root, "proc/driver/nvidia/gpus")
    for address in sorted(os.listdir(directory)):
        with open(os.path.join(directory, address, "information")) as file:
            emit(("gpu", bus_id_of_address(address), parse_uuid(file.read())))


def parse_uuid(text: str) -> str | None:
    """The UUID in a GPU's `information` file; None while the driver shows question marks for it."""
    found = _UUID.search(f"{text}\n")
    return found[1] if found else None
