"""Network interfaces: state, speed, and addresses, from the kernel's own files."""

from __future__ import annotations

import os

from gpudiag.probe.addresses import read_addresses
from gpudiag.probe.sheet import NOT_SUPPORTED, Absent, Sheet, reason_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_UP, _LOOPBACK = 0x1, 0x8  # IFF_UP and IFF_LOOPBACK of net_device flags (linux/if.h)


def read_interfaces(root: str = "/") -> list[dict[str, Any]]:
    """One sheet's document per interface, by name.

    Raises:
        FileNotFoundError: the machine shows no /sys/class/net.
    """
    addresses = read_addresses(root)
    directory = os.path.join(root, "sys/class/net")
    names = [name for name in os.listdir(directory) if os.path.isdir(os.path.join(directory, name))]
    return [
        _interface(os.path.join(directory, name), name, addresses.get(name, [])) for name in sorted(names)
    ]


def _interface(directory: str, name: str, addresses: list[str]) -> dict[str, Any]:
    flags = int(_line(directory, "flags"), 16)
    state = _line(directory, "operstate")
    sheet = Sheet(reason_of)
    sheet.values.update(
        name=name,
        # Loopback and tunnels say `unknown`, and are up if the administrator set them up.
        up=state == "up" or (state == "unknown" and bool(flags & _UP)),
        loopback=bool(flags & _LOOPBACK),
        addresses=addresses,
    )
    sheet.read("mtu", lambda: int(_line(directory, "mtu")))
    sheet.read("speed_mbit_per_second", _speed, directory)
    return sheet.document()


def _speed(directory: str) -> int:
    try:
        speed = int(_line(directory, "speed"))
    except OSError:  # EINVAL where the device is down or has no speed of its own
        raise Absent(NOT_SUPPORTED, "the kernel knows no speed") from None
    if speed <= 0:
        raise Absent(NOT_SUPPORTED, "the kernel knows no speed")
    return speed


def _line(directory: str, name: str) -> str:
    with open(os.path.join(directory, name)) as file:
        return file.read().strip()
