"""Network interfaces, by netlink or from the kernel's files, and the ports of RDMA devices.

Source: kernel documentation, ABI/stable/sysfs-class-infiniband.
"""

from __future__ import annotations

import os
from socket import AF_INET6, inet_aton, inet_ntop
from typing import Any

from gpudiag.linux.interfaces import list_addresses
from gpudiag.linux.proc import read_line, read_text
from gpudiag.model.number_ranges import order_of_name
from gpudiag.probe.host.pci import parse_numa_node
from gpudiag.probe.sheet import ERROR, NOT_SUPPORTED, Absent, Sheet, reason_of

# --- interfaces


def read_addresses(root: str = "/") -> dict[str, list[str]]:
    """The IPv4 and IPv6 addresses of each interface that has any, as text."""
    if root == "/":
        try:
            return _by_netlink()
        except OSError:
            pass  # a sandbox without netlink still shows the files
    return _by_files(root)


def _by_netlink() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for one in list_addresses():
        found.setdefault(one.interface, []).append(one.address.partition("%")[0])
    return found


def _by_files(root: str) -> dict[str, list[str]]:
    """Addresses by /proc/net: exact for IPv6, by the routing table for IPv4."""
    found: dict[str, list[str]] = {}
    routes = parse_routes(_text(root, "proc/net/route"))
    for address in parse_local_addresses(_text(root, "proc/net/fib_trie")):
        interface = interface_of(address, routes)
        if interface is not None:
            found.setdefault(interface, []).append(address)
    for interface, address in parse_if_inet6(_text(root, "proc/net/if_inet6")):
        found.setdefault(interface, []).append(address)
    return found


def parse_local_addresses(fib_trie: str) -> list[str]:
    """This machine's IPv4 addresses in /proc/net/fib_trie: leaves with `/32 host LOCAL`, each once."""
    found: dict[str, None] = {}
    leaf = ""
    for line in fib_trie.splitlines():
        words = line.split()
        if words[:1] == ["|--"]:
            leaf = words[1]
        elif words == ["/32", "host", "LOCAL"]:
            found[leaf] = None
    return list(found)


def parse_routes(route: str) -> list[tuple[str, int, int]]:
    """(interface, network, mask) of each row of /proc/net/route, longest mask first."""
    rows = [line.split() for line in route.splitlines()[1:]]
    parsed = [(row[0], _hex_address(row[1]), _hex_address(row[7])) for row in rows if len(row) > 7]
    return sorted(parsed, key=lambda row: row[2], reverse=True)


def _hex_address(text: str) -> int:
    """An address as /proc/net/route writes it, the bytes of network order read as a little-endian number."""
    return int.from_bytes(int(text, 16).to_bytes(4, "little"), "big")


def interface_of(address: str, routes: list[tuple[str, int, int]]) -> str | None:
    """The interface whose route covers `address`; the loopback's addresses need no route."""
    if address.startswith("127."):
        return "lo"
    number = int.from_bytes(inet_aton(address), "big")
    return next((interface for interface, network, mask in routes if number & mask == network), None)


def parse_if_inet6(if_inet6: str) -> list[tuple[str, str]]:
    """(interface, address) of each row of /proc/net/if_inet6."""
    rows = (line.split() for line in if_inet6.splitlines())
    return [(row[5], inet_ntop(AF_INET6, bytes.fromhex(row[0]))) for row in rows if len(row) > 5]


def _text(root: str, name: str) -> str:
    try:
        return read_text(root, name)
    except FileNotFoundError:  # a machine without IPv6, or without any network
        return ""


_UP, _LOOPBACK = 0x1, 0x8  # IFF_UP and IFF_LOOPBACK of net_device flags (linux/if.h)


def read_interfaces(root: str = "/") -> list[dict[str, Any]]:
    """One sheet's document per interface. Raises FileNotFoundError: there is no /sys/class/net."""
    addresses = read_addresses(root)
    directory = os.path.join(root, "sys/class/net")
    names = [name for name in os.listdir(directory) if os.path.isdir(os.path.join(directory, name))]
    return [
        _interface(os.path.join(directory, name), name, addresses.get(name, [])) for name in sorted(names)
    ]


def _interface(directory: str, name: str, addresses: list[str]) -> dict[str, Any]:
    flags = int(read_line(directory, "flags"), 16)
    state = read_line(directory, "operstate")
    sheet = Sheet(reason_of)
    sheet.values.update(
        name=name,
        # Loopback and tunnels report `unknown`, and are up if the administrator set them up.
        up=state == "up" or (state == "unknown" and bool(flags & _UP)),
        loopback=bool(flags & _LOOPBACK),
        addresses=addresses,
    )
    sheet.read("mtu", lambda: int(read_line(directory, "mtu")))
    sheet.read("speed_mbit_per_second", _speed, directory)
    return sheet.document()


def _speed(directory: str) -> int:
    try:
        speed = int(read_line(directory, "speed"))
    except OSError:  # EINVAL where the device is down or has no speed of its own
        raise Absent(NOT_SUPPORTED, "the kernel reports no speed") from None
    if speed <= 0:
        raise Absent(NOT_SUPPORTED, "the kernel reports no speed")
    return speed


# --- RDMA ports

_COUNTERS = (
    "link_downed",
    "symbol_error",
    "link_error_recovery",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "port_rcv_errors",
)


def read_infiniband_ports(root: str = "/") -> list[dict[str, Any]]:
    """One sheet's document per port of each device. Raises FileNotFoundError: no RDMA driver is loaded."""
    directory = os.path.join(root, "sys/class/infiniband")
    found = []
    for device in sorted(os.listdir(directory), key=order_of_name):
        ports = os.path.join(directory, device, "ports")
        for port in sorted(os.listdir(ports), key=int):
            found.append(_read_port(os.path.join(directory, device), device, port))
    return found


def _read_port(directory: str, device: str, port: str) -> dict[str, Any]:
    place = os.path.join(directory, "ports", port)
    sheet = Sheet()
    sheet.values.update(device=device, port=int(port), counters=_counters(place))
    sheet.values["virtual_function"] = os.path.lexists(os.path.join(directory, "device/physfn"))
    sheet.read("link_layer", read_line, place, "link_layer")
    sheet.read("state", lambda: parse_state(read_line(place, "state")))
    sheet.read("physical_state", lambda: parse_state(read_line(place, "phys_state")))
    sheet.read("rate_gbit_per_second", lambda: parse_rate(read_line(place, "rate")))
    sheet.read("numa_node", lambda: parse_numa_node(read_line(directory, "device/numa_node")))
    sheet.read("board", read_line, directory, "board_id")
    return sheet.document()


def _counters(place: str) -> dict[str, int]:
    """The counters that this port has; some cards keep fewer."""
    found = {}
    for name in _COUNTERS:
        try:
            found[name] = int(read_line(place, f"counters/{name}"))
        except (OSError, ValueError):
            continue
    return found


def parse_state(text: str) -> str:
    """The word of a state such as `4: ACTIVE`. Raises Absent: it has no colon."""
    _, colon, word = text.partition(":")
    if not colon:
        raise Absent(ERROR, f"the kernel reports {text!r}")
    return word.strip()


def parse_rate(text: str) -> float:
    """The Gbit/s in a rate such as `400 Gb/sec (4X NDR)`. Raises Absent: the port has no rate."""
    words = text.split()
    if not words or float(words[0]) == 0:
        raise Absent(NOT_SUPPORTED, f"the kernel reports {text!r}")
    return float(words[0])
