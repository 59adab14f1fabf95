"""What ranks need of this machine's network: its loopback interface, and an address for the rendezvous."""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from gpudiag.errors import LaunchError
from gpudiag.linux.proc import list_pids, socket_inodes
from gpudiag.linux.sockets import listening_ports
from gpudiag.model.untrusted_text import shorten_text

# Below the ports that the kernel gives away by itself (32768 and up), above those of services: where agents
# find each other, and where ranks meet if nobody has named a port.
AGENT_PORTS = range(20000, 26000)
MEETING_PORTS = range(26000, 32000)

# A rank, or an address, that is waited for is named on standard error after so long.
NOTICE_SECONDS = 5.0

_LOOPBACK_FLAG = 0x8  # IFF_LOOPBACK of linux/if.h
# A resolver that takes longer is slow, not wrong: then the ranks try it themselves.
_LOOK_UP_SECONDS = 5.0
_LOOK_SECONDS = 2.0  # for agents, which look again
_RETRY_SECONDS = 1.0
_MEANWHILE_SECONDS = 0.2
# Docker's own resolver, which knows a container's name once that is up.
_DOCKER_RESOLVER = "nameserver 127.0.0.11"
_COMMAND_CHARACTERS = 60


class NoAddressError(LaunchError):
    """The name of rank 0's machine has no address on this one."""

    def __init__(self, name: str, reason: str) -> None:
        """Keep the `name`, and the resolver's `reason`."""
        super().__init__(
            f"the rendezvous host {name} has no address on {socket.gethostname()}: {reason}",
            hint=f"try `getent hosts {name}`; MASTER_ADDR or --init-method names rank 0's machine",
        )
        self.words = f"{name} has no address on this machine: {reason}"


def require_address(
    name: str,
    patience_seconds: float,
    look_up_seconds: float = _LOOK_UP_SECONDS,
    notice: Callable[[str], None] | None = None,
    meanwhile: Callable[[str], None] | None = None,
) -> None:
    """Return once the name where ranks are to meet has an address, which a cluster may give late.

    `notice` gets after 5 s what is waited for; `meanwhile` several times a second the resolver's reason.

    Raises:
        NoAddressError: the name still did not resolve after `patience_seconds`.
    """
    began = time.monotonic()
    deadline = began + patience_seconds
    while (reason := _why_unknown(name, look_up_seconds)) is not None:
        if notice is not None and time.monotonic() - began >= NOTICE_SECONDS:
            notice(f"waiting for an address of {name}, the rendezvous host: {reason}")
            notice = None
        if time.monotonic() >= deadline:
            raise NoAddressError(name, reason)
        again = min(time.monotonic() + _RETRY_SECONDS, deadline)
        while (left := again - time.monotonic()) > 0:
            if meanwhile is not None:
                meanwhile(reason)
            time.sleep(min(_MEANWHILE_SECONDS, left))


def names_are_late() -> bool:
    """Whether names of machines get their addresses only when these are up, as those of containers do."""
    if "KUBERNETES_SERVICE_HOST" in os.environ or Path("/run/.containerenv").exists():
        return True
    return _DOCKER_RESOLVER in _read(Path("/etc/resolv.conf"))


def has_address(name: str) -> bool:
    """Whether the resolver knows an address for that name, or takes too long to answer."""
    return _why_unknown(name, _LOOK_UP_SECONDS) is None


def is_own_address(name: str) -> bool:
    """Whether this machine has one of the addresses of that name. Raises OSError: the name has no address."""
    for family, kind, protocol, _, place in socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM):
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.bind(place)
            except OSError:
                continue
            return True
    return False


def address_towards(host: str, port: int) -> str:
    """The address of this machine from which its kernel would connect there, without a packet.

    It is empty where there is no way.
    """
    with contextlib.suppress(OSError):
        for family, _, _, _, place in socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM):
            with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(place)
                return str(probe.getsockname()[0])
    return ""


# Of each name the look-up that has not ended, and what the last one brought.
_running: dict[str, threading.Thread] = {}
_replies: dict[str, Sequence[str] | str] = {}


def look_up_in_time(name: str) -> Sequence[str] | str:
    """The addresses of the name, or why it has none; empty where the resolver has not replied yet.

    A look-up that takes longer than 2 s goes on, and the next call gets its reply: an error may take half a
    minute.
    """

    def look_up() -> None:
        try:
            entries = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except OSError as error:
            _replies[name] = error.strerror or str(error)
        else:
            _replies[name] = tuple(dict.fromkeys(str(entry[4][0]) for entry in entries))

    thread = _running.get(name)
    if thread is None or not thread.is_alive():
        thread = _running[name] = threading.Thread(target=look_up, daemon=True)
        thread.start()
    thread.join(_LOOK_SECONDS)
    return _replies.get(name, ())


def _why_unknown(name: str, seconds: float) -> str | None:
    """Why the resolver does not know the name; None if it does, or if it takes longer than `seconds`."""
    reasons: list[str] = []

    def look_up() -> None:
        try:
            socket.getaddrinfo(name, None)
        except OSError as error:
            reasons.append(error.strerror or str(error))

    thread = threading.Thread(target=look_up, daemon=True)  # daemon: a resolver may hang
    thread.start()
    thread.join(seconds)
    return reasons[0] if reasons else None


def find_listener(port: int) -> str | None:
    """The process that listens on TCP port `port` of this machine, in words; None if that cannot be seen."""
    inodes = {inode for inode, one in listening_ports("self").items() if one == port}
    for pid in list_pids() if inodes else ():
        if not inodes.isdisjoint(socket_inodes(pid)):
            command = _read(Path(f"/proc/{pid}/cmdline")).replace("\0", " ").strip()
            return f"process {pid}: {shorten_text(command, _COMMAND_CHARACTERS)}"
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


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
