"""The addresses of this host, and those that its ranks will give to the others: read before they do."""

import ipaddress
import os
import socket
import threading
from collections.abc import Mapping
from pathlib import Path

from gpudiag.linux.interfaces import list_addresses
from gpudiag.model.published import (
    GLOO_VARIABLE,
    HostAddresses,
    OwnInterface,
    gloo_addresses,
    nccl_addresses,
)
from gpudiag.ranks.agents.own_addresses import address_towards

# A resolver that takes longer is slow, not wrong: then the ranks try it themselves.
_LOOK_UP_SECONDS = 5.0
_MOST_INTERFACES = 64


def read_host_addresses(variables: Mapping[str, str] = os.environ) -> HostAddresses | None:
    """What this host has and publishes with these variables; None if unknown."""
    try:
        interfaces = read_interfaces()
    except OSError:
        return None
    host = socket.gethostname()
    decided = len(variables.get(GLOO_VARIABLE, "")) > 1
    own_name = () if decided else look_up(host)
    if own_name is None:
        return None
    gloo = gloo_addresses(variables, host, own_name, interfaces)
    nccl = nccl_addresses(variables, interfaces)
    chosen = {one.interface for one in (*gloo, *nccl)}
    # A host of containers has hundreds that lead to these alone, each with an address of its link.
    published = [one for one in interfaces if one.name in chosen or not one.is_of_link_alone]
    return HostAddresses(tuple(published[:_MOST_INTERFACES]), gloo, nccl, own_name)


def read_interfaces() -> tuple[OwnInterface, ...]:
    """This host's interfaces with addresses, in the kernel's order. Raises OSError: it lists none."""
    found: dict[tuple[int, str], list[str]] = {}
    for one in list_addresses():
        found.setdefault((one.interface_index, one.interface), []).append(f"{one.address}/{one.prefix}")
    return tuple(
        OwnInterface(
            name, ipaddress.ip_interface(addresses[0]).is_loopback, tuple(addresses), _read_hardware(name)
        )
        for (_, name), addresses in sorted(found.items())
    )


def find_odd_way(address: str) -> tuple[OwnInterface, OwnInterface] | None:
    """By which interface this host sends there, and another one that is in that network; None without one."""
    try:
        interfaces = [one for one in read_interfaces() if not one.loopback]
    except OSError:
        return None
    source = address_towards(address, 9)
    taken = next((one for one in interfaces if source in one.plain_addresses()), None)
    other = next((one for one in interfaces if one is not taken and one.is_in_network(address)), None)
    return None if taken is None or other is None else (taken, other)


def _read_hardware(name: str) -> str:
    try:
        text = Path(f"/sys/class/net/{name}/address").read_text().strip()
    except OSError:
        return ""
    return "" if set(text) <= set("0:") else text  # of loopback, and of tunnels


def look_up(name: str) -> tuple[str, ...] | None:
    """The addresses of that name, in the resolver's order; empty for none, None where it takes too long."""
    found: list[tuple[str, ...]] = []

    def ask() -> None:
        try:
            entries = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except OSError:
            found.append(())
        else:
            found.append(tuple(dict.fromkeys(str(entry[4][0]) for entry in entries)))

    thread = threading.Thread(target=ask, daemon=True)  # a resolver may hang, and is left behind then
    thread.start()
    thread.join(_LOOK_UP_SECONDS)
    return found[0] if found else None
