"""Network interfaces and InfiniBand ports as the kernel shows them, under /sys/class and /proc/net."""

from ipaddress import IPv4Interface, ip_interface
from zlib import crc32

from gpudiag.simulate.blueprint import HostFacts, Interface

# IFF_* of linux/if.h: UP, BROADCAST, LOOPBACK, RUNNING, MULTICAST.
_UP, _BROADCAST, _LOOPBACK, _RUNNING, _MULTICAST = 0x1, 0x2, 0x8, 0x40, 0x1000
_ARPHRD_ETHER, _ARPHRD_LOOPBACK = 1, 772
_IB_GENERATIONS = {100: "4X EDR", 200: "4X HDR", 400: "4X NDR", 800: "4X XDR"}
_IB_COUNTERS = (
    "link_downed",
    "symbol_error",
    "link_error_recovery",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "port_rcv_errors",
)


def render_network(host: HostFacts) -> dict[str, str]:
    """The files of every interface, its addresses and routes, and of every InfiniBand device."""
    files: dict[str, str] = {}
    for number, interface in enumerate(host.interfaces, start=1):
        files |= _interface(interface, number, host.hostname)
    for device, rate in host.infiniband_gbit_per_second.items():
        files |= _infiniband(device, rate)
    files["proc/net/dev"] = _device_list(host.interfaces)
    files["proc/net/if_inet6"] = _inet6(host.interfaces)
    files["proc/net/route"] = _routes(host.interfaces)
    files["proc/net/fib_trie"] = _fib_trie(host.interfaces)
    return files


def _interface(interface: Interface, number: int, hostname: str) -> dict[str, str]:
    flags = _UP | _RUNNING if interface.up else 0
    flags |= _LOOPBACK if interface.loopback else _BROADCAST | _MULTICAST
    tail = crc32(f"{hostname}/{interface.name}".encode())
    mac = (
        "00:00:00:00:00:00"
        if interface.loopback
        else "02:00:" + ":".join(f"{tail:08x}"[at : at + 2] for at in (0, 2, 4, 6))
    )
    state = "unknown" if interface.loopback else "up" if interface.up else "down"
    values = {
        "operstate": state,
        "mtu": interface.mtu,
        "flags": f"0x{flags:x}",
        "ifindex": number,
        "type": _ARPHRD_LOOPBACK if interface.loopback else _ARPHRD_ETHER,
        "address": mac,
        "carrier": int(interface.up),
    }
    if interface.speed_mbit_per_second is not None:  # reading it fails where the driver knows none
        values["speed"] = interface.speed_mbit_per_second
    return {f"sys/class/net/{interface.name}/{name}": f"{value}\n" for name, value in values.items()}


def _infiniband(device: str, rate_gbit_per_second: int) -> dict[str, str]:
    port = f"sys/class/infiniband/{device}/ports/1"
    files = {
        f"sys/class/infiniband/{device}/node_type": "1: CA\n",
        f"{port}/state": "4: ACTIVE\n",
        f"{port}/phys_state": "5: LinkUp\n",
        f"{port}/rate": (
            f"{rate_gbit_per_second} Gb/sec ({_IB_GENERATIONS.get(rate_gbit_per_second, '4X')})\n"
        ),
        f"{port}/link_layer": "InfiniBand\n",
    }
    return files | {f"{port}/counters/{name}": "0\n" for name in _IB_COUNTERS}


def _device_list(interfaces: tuple[Interface, ...]) -> str:
    header = (
        "Inter-|   Receive                                                |  Transmit\n"
        " face |bytes    packets errs drop fifo frame compressed multicast"
        "|bytes    packets errs drop fifo colls carrier compressed\n"
    )
    return header + "".join(f"{interface.name:>6}:" + " 0" * 16 + "\n" for interface in interfaces)


def _inet6(interfaces: tuple[Interface, ...]) -> str:
    lines = []
    for number, interface in enumerate(interfaces, start=1):
        for address in map(ip_interface, interface.addresses):
            if not isinstance(address, IPv4Interface):
                scope = 0x10 if address.is_loopback else 0x20 if address.is_link_local else 0
                digits = address.ip.exploded.replace(":", "")
                length = address.network.prefixlen
                lines.append(f"{digits} {number:02x} {length:02x} {scope:02x} 80 {interface.name:>8}\n")
    return "".join(lines)


def _inet4(interfaces: tuple[Interface, ...]) -> list[tuple[str, IPv4Interface]]:
    addresses = (
        (interface.name, ip_interface(text)) for interface in interfaces for text in interface.addresses
    )
    return [(name, address) for name, address in addresses if isinstance(address, IPv4Interface)]


def _routes(interfaces: tuple[Interface, ...]) -> str:
    """/proc/net/route: the directly attached networks; addresses are in reversed byte order."""
    lines = ["Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"]
    for name, address in _inet4(interfaces):
        if not address.is_loopback and address.network.prefixlen < 32:
            network, mask = (
                part.packed[::-1].hex().upper() for part in (address.network.network_address, address.netmask)
            )
            lines.append(f"{name}\t{network}\t00000000\t0001\t0\t0\t0\t{mask}\t0\t0\t0\n")
    return "".join(lines)


def _fib_trie(interfaces: tuple[Interface, ...]) -> str:
    """/proc/net/fib_trie, without its inner nodes: each network, then each address of this host."""
    text = "Main:\n  +-- 0.0.0.0/0 3 0 5\n"
    for _, address in _inet4(interfaces):
        text += (
            f"     |-- {address.network.network_address}\n        /{address.network.prefixlen} link UNICAST\n"
        )
    text += "Local:\n  +-- 0.0.0.0/0 3 0 5\n"
    for _, address in _inet4(interfaces):
        text += f"     |-- {address.ip}\n        /32 host LOCAL\n"
    return text
