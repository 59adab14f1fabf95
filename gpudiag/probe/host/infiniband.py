"""The ports of RDMA devices, InfiniBand and Ethernet alike, as the kernel shows them.

Source: kernel documentation, ABI/stable/sysfs-class-infiniband.
"""

from __future__ import annotations

import os
from typing import Any

from gpudiag.probe.host.pci import parse_numa_node
from gpudiag.probe.sheet import ERROR, NOT_SUPPORTED, Absent, Sheet

_COUNTERS = (
    "link_downed", "symbol_error", "link_error_recovery", "local_link_integrity_errors",
    "excessive_buffer_overrun_errors", "port_rcv_errors",
)  # fmt: skip


def read_infiniband_ports(root: str = "/") -> list[dict[str, Any]]:
    """One sheet's document per port of each device, in the order of their names.

    Raises:
        FileNotFoundError: no RDMA driver is loaded.
    """
    directory = os.path.join(root, "sys/class/infiniband")
    found = []
    for device in sorted(os.listdir(directory), key=_by_number):
        ports = os.path.join(directory, device, "ports")
        for port in sorted(os.listdir(ports), key=int):
            found.append(_read_port(os.path.join(directory, device), device, port))
    return found


def _read_port(directory: str, device: str, port: str) -> dict[str, Any]:
    place = os.path.join(directory, "ports", port)
    sheet = Sheet()
    sheet.values.update(device=device, port=int(port), counters=_counters(place))
    sheet.read("link_layer", _line, place, "link_layer")
    sheet.read("state", lambda: parse_state(_line(place, "state")))
    sheet.read("physical_state", lambda: parse_state(_line(place, "phys_state")))
    sheet.read("rate_gbit_per_second", lambda: parse_rate(_line(place, "rate")))
    sheet.read("numa_node", lambda: parse_numa_node(_line(directory, "device/numa_node")))
    sheet.read("board", _line, directory, "board_id")
    return sheet.document()


def _counters(place: str) -> dict[str, int]:
    """The counters that this port has; some cards keep fewer."""
    found = {}
    for name in _COUNTERS:
        try:
            found[name] = int(_line(place, f"counters/{name}"))
        except (OSError, ValueError):
            continue
    return found


def parse_state(text: str) -> str:
    """The word of a state such as `4: ACTIVE`.

    Raises:
        Absent: it has no colon.
    """
    _, colon, word = text.partition(":")
    if not colon:
        raise Absent(ERROR, f"the kernel says {text!r}")
    return word.strip()


def parse_rate(text: str) -> float:
    """The Gbit/s in a rate such as `400 Gb/sec (4X NDR)`.

    Raises:
        Absent: the port has no rate.
    """
    words = text.split()
    if not words or float(words[0]) == 0:
        raise Absent(NOT_SUPPORTED, f"the kernel says {text!r}")
    return float(words[0])


def _by_number(name: str) -> tuple[str, int]:
    stem = name.rstrip("0123456789")
    return stem, int(name[len(stem) :] or -1)


def _line(directory: str, name: str) -> str:
    with open(os.path.join(directory, name)) as file:
        return file.read().strip()
