"""What ranks need of this machine's network: its loopback interface, and an address for where they meet."""

import socket
import threading
from pathlib import Path

from gpudiag.errors import LaunchError

_LOOPBACK_FLAG = 0x8  # IFF_LOOPBACK of linux/if.h
# A resolver that takes longer is slow and not wrong: then the ranks try it themselves.
_LOOK_UP_SECONDS = 5.0


def require_address(name: str, seconds: float = _LOOK_UP_SECONDS) -> None:
    """Nothing, unless the name where ranks are to meet has no address here: they would wait for each other in vain.

    Raises:
        LaunchError: the resolver said so.
    """
    said: list[str] = []

    def look_up() -> None:
        try:
            socket.getaddrinfo(name, None)
        except OSError as error:
            said.append(error.strerror or str(error))

    thread = threading.Thread(target=look_up, daemon=True)  # a resolver may hang, and is left behind then
    thread.start()
    thread.join(seconds)
    if said:
        raise LaunchError(
            f"{name}, where the ranks are to meet, has no address on this machine: {said[0]}",
            hint=f"try `getent hosts {name}`; MASTER_ADDR or --init-method names rank 0's machine",
        )


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
