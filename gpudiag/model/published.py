"""The address that a rank gives to the others: which of a host's gloo and NCCL choose, by their own rules.

gloo: torch's ProcessGroupGloo.cpp (createDefaultDevice) and gloo's transport/tcp/device.cc. NCCL:
src/misc/socket.cc (ncclFindInterfaces). Both then expect that every other rank can connect there, on a port
of the kernel's choice.
"""

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

GLOO_VARIABLE = "GLOO_SOCKET_IFNAME"
NCCL_VARIABLE = "NCCL_SOCKET_IFNAME"
_NCCL_FAMILY = "NCCL_SOCKET_FAMILY"
# Where the host's own name has no address of this machine, torch takes this one (kLoopbackAddress).
_FALLBACK = "127.0.0.1"
# The order in which NCCL looks for an interface by itself: the names are prefixes.
_NCCL_ORDER = ("ib", "^docker,lo,virbr", "docker", "lo", "virbr")


@dataclass(frozen=True, slots=True)
class OwnInterface:
    """One interface of a host, with its addresses as `10.0.0.1/24`."""

    name: str
    loopback: bool
    addresses: tuple[str, ...]
    hardware: str = ""  # its MAC address; empty where it has none, or where that is not known

    def __str__(self) -> str:
        """Its name and first address: `eth0 (10.0.0.1/24)`."""
        return f"{self.name} ({self.addresses[0]})"

    @property
    def is_of_link_alone(self) -> bool:
        """Whether no address of it is known beyond its link."""
        return all(ipaddress.ip_interface(one).ip.is_link_local for one in self.addresses)

    def plain_addresses(self) -> tuple[str, ...]:
        """The addresses without the lengths of their networks."""
        return tuple(one.partition("/")[0] for one in self.addresses)

    def is_in_network(self, address: str) -> bool:
        """Whether the address is one of its networks'."""
        ip = ipaddress.ip_address(address.partition("%")[0])
        return any(ip in ipaddress.ip_network(one) for one in self.networks())

    def networks(self) -> tuple[str, ...]:
        """The networks of its addresses, as `10.0.0.0/24`."""
        return tuple(str(ipaddress.ip_interface(one).network) for one in self.addresses)


@dataclass(frozen=True, slots=True)
class Published:
    """The address that ranks of a host give to those of others."""

    library: str  # gloo or NCCL
    by: str  # what decides: `GLOO_SOCKET_IFNAME=eth1`; empty where it is the own name, or the library
    interface: str | None  # None where no interface has the address, or none was found
    address: str | None  # None where the library finds none, and raises
    own_name: str = ""  # the host's, where that decides; without that and `by` the library chooses by itself

    @property
    def is_loopback(self) -> bool:
        """Whether other hosts that connect there reach themselves."""
        return self.address is not None and ipaddress.ip_address(self.address.partition("%")[0]).is_loopback

    @property
    def is_ipv6(self) -> bool:
        """Whether the address is one of IPv6."""
        return self.address is not None and ":" in self.address


@dataclass(frozen=True, slots=True)
class HostAddresses:
    """What a host has, and what its ranks publish of it."""

    interfaces: tuple[OwnInterface, ...]  # those that have an address, in the kernel's order
    gloo: tuple[Published, ...]
    nccl: tuple[Published, ...]
    # What the host's own name resolves to, where that decides; empty for nothing.
    own_name: tuple[str, ...] = ()

    def of(self, library: str) -> tuple[Published, ...]:
        """What it publishes for that library."""
        return self.nccl if library == "NCCL" else self.gloo

    def has(self, address: str) -> bool:
        """Whether one of its interfaces has the address, other than loopback ones."""
        return self.interface_of(address) is not None

    def interface_of(self, address: str) -> OwnInterface | None:
        """The interface, other than loopback ones, that has the address."""
        return next(
            (one for one in self.interfaces if address in one.plain_addresses() and not one.loopback), None
        )

    def interface_in(self, network: str) -> tuple[str, str] | None:
        """The name and the address of the first interface in that network; None where it has none."""
        for one in self.interfaces:
            for address, own in zip(one.plain_addresses(), one.networks(), strict=True):
                if own == network and not one.loopback:
                    return one.name, address
        return None

    def network_of(self, address: str) -> str | None:
        """The network of one of its addresses; None where it has no such address."""
        for one in self.interfaces:
            for own, network in zip(one.plain_addresses(), one.networks(), strict=True):
                if own == address:
                    return network
        return None


def gloo_addresses(
    variables: Mapping[str, str], host: str, own_name: Sequence[str], interfaces: Sequence[OwnInterface]
) -> tuple[Published, ...]:
    """What ranks with gloo publish: one address for each interface that GLOO_SOCKET_IFNAME names, else one.

    `own_name` are the addresses that the host's name resolves to, in the resolver's order.
    """
    value = variables.get(GLOO_VARIABLE, "")
    if len(value) > 1:
        by = f"{GLOO_VARIABLE}={value}"
        return tuple(_of_interface("gloo", by, name, interfaces) for name in value.split(","))
    for address in own_name:
        if ipaddress.ip_address(address.partition("%")[0]).is_loopback:
            return (Published("gloo", "", "lo", address, host),)
        name = next((one.name for one in interfaces if address in one.plain_addresses()), None)
        if name is not None:
            return (Published("gloo", "", name, address, host),)
    return (Published("gloo", "", "lo", _FALLBACK, host),)


def nccl_addresses(variables: Mapping[str, str], interfaces: Sequence[OwnInterface]) -> tuple[Published, ...]:
    """What ranks with NCCL publish: the first address of the first interface that its rules select."""
    value = variables.get(NCCL_VARIABLE, "")
    family = {"AF_INET": False, "AF_INET6": True}.get(variables.get(_NCCL_FAMILY, ""))
    if len(value) > 1:
        orders: tuple[str, ...] = (value,)
        by = f"{NCCL_VARIABLE}={value}"
    else:
        orders, by = _NCCL_ORDER, ""
    for order in orders:
        for name, address in _in_nccl_order(interfaces):
            if names_interface(NCCL_VARIABLE, order, name) and family in (None, ":" in address):
                return (Published("NCCL", by, name, address),)
    return (Published("NCCL", by, None, None),)


def names_interface(variable: str, value: str, interface: str) -> bool:
    """Whether the value selects that interface.

    gloo and TensorPipe take names, in a list; NCCL takes prefixes, exact names after `=`, and the
    opposite of the list after `^`.
    """
    words = [word.strip() for word in value.lstrip("^=").split(",") if word.strip()]
    if variable != NCCL_VARIABLE:
        return interface in words
    excluded, exact = value.startswith("^"), value.lstrip("^").startswith("=")
    matches = interface in words if exact else interface.startswith(tuple(words))
    return matches != excluded


def _of_interface(library: str, by: str, name: str, interfaces: Sequence[OwnInterface]) -> Published:
    found = next((one.plain_addresses() for one in interfaces if one.name == name), ())
    return Published(library, by, name, found[0] if found else None)


def _in_nccl_order(interfaces: Sequence[OwnInterface]) -> Iterator[tuple[str, str]]:
    """Each interface with each of its addresses: those of IPv4 first; `::1` is left out."""
    pairs = [(one.name, address) for one in interfaces for address in one.plain_addresses()]
    yield from (pair for pair in pairs if ":" not in pair[1])
    yield from (pair for pair in pairs if ":" in pair[1] and pair[1] != "::1")
