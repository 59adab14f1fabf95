"""The one thing ranks need to know of this machine's network: its loopback interface."""

import socket
from pathlib import Path

_LOOPBACK_FLAG = 0x8  # IFF_LOOPBACK of linux/if.h


def loopback_interface() -> str:
    """The name of the loopback interface; empty if there is none, which leaves the choice to gloo."""
    for _, name in socket.if_nameindex():
        try:
            flags = int(Path(f"/sys/class/net/{name}/flags").read_text(), 16)
        except (OSError, ValueError):
            continue
        if flags & _LOOPBACK_FLAG:
            return name
    return ""
