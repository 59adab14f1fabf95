"""PCI bridges above GPUs that send traffic between GPUs up to the processor (ACS redirection)."""

from __future__ import annotations

import os
import struct

from gpudiag.probe.pci import bus_id_of_address
from gpudiag.probe.sheet import ERROR, NO_PERMISSION, SOURCE_ABSENT, Absent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_NVIDIA, _DISPLAY = "0x10de", "0x03"
_PUBLIC_BYTES = 64  # what the kernel shows of the configuration space without CAP_SYS_ADMIN
# PCI Express Base Specification 6.0: extended capabilities start at 0x100; ACS is number 0x000d, its
# control register is at offset 6; bits 2 and 3 redirect peer requests and completions.
_EXTENDED = 0x100
_ACS, _ACS_CONTROL, _REDIRECT = 0x000D, 6, 0x0C
_MAX_CAPABILITIES = 64  # a damaged list may point in circles


def read_redirecting_bridges(root: str = "/") -> list[str]:
    """The bus ids of the bridges above NVIDIA GPUs that redirect peer traffic.

    Raises:
        Absent: NO_PERMISSION where the configuration space is shown to root only; SOURCE_ABSENT where
            there is no bridge to look at.
    """
    bridges = sorted(set(_bridges(os.path.join(root, "sys/bus/pci/devices"))))
    if not bridges:
        raise Absent(SOURCE_ABSENT, "no bridge above a GPU is visible")
    return [bus_id_of_address(os.path.basename(bridge)) for bridge in bridges if _redirects(bridge)]


def _bridges(bus: str) -> Iterator[str]:
    """The folders of all bridges between a GPU and its root."""
    for address in os.listdir(bus):
        folder = os.path.realpath(os.path.join(bus, address))
        if _line(folder, "vendor") != _NVIDIA or not _line(folder, "class").startswith(_DISPLAY):
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
    """The ACS control register in a PCIe configuration space; 0 where the function has no ACS.

    Raises:
        Absent: the list of capabilities does not end.
    """
    at = _EXTENDED
    for _ in range(_MAX_CAPABILITIES):
        if at < _EXTENDED or at + 8 > len(space):
            return 0
        header: int = struct.unpack_from("<I", space, at)[0]
        if header & 0xFFFF == _ACS:
            control: int = struct.unpack_from("<H", space, at + _ACS_CONTROL)[0]
            return control
        at = header >> 20
    raise Absent(ERROR, "the list of PCIe capabilities does not end")


def _line(directory: str, name: str) -> str:
    with open(os.path.join(directory, name)) as file:
        return file.read().strip()
