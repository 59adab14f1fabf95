"""Tries where a rank of a running job is to meet the others: in a guarded child, in its namespaces."""

import contextlib
import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpudiag.linux.proc import read_environment
from gpudiag.model.codec import decode, encode
from gpudiag.model.published import HostAddresses
from gpudiag.probe.guard import run_guarded
from gpudiag.ranks.agents.addresses import read_host_addresses
from gpudiag.ranks.agents.discovery import Address
from gpudiag.ranks.agents.own_addresses import address_towards
from gpudiag.ranks.agents.reach import Meeting, Obstacle, Reach, look_at

# The resolver may take 5 s for the host's own name and 2 s for rank 0's; then three addresses get 1 s each.
_SECONDS = 12.0
_NAMESPACES = ("net", "uts", "mnt")  # the last changes which files are seen


@dataclass(frozen=True, slots=True)
class MeetingLook:
    """What a process finds where it runs: addresses that its ranks publish, the way to rank 0."""

    addresses: HostAddresses | None
    reach: Reach | None
    own_address: str = (
        ""  # from which the kernel would connect to rank 0's machine; empty where it knows no way
    )


def look_at_meeting(pid: int, point: Address | None, *, elsewhere: bool) -> MeetingLook | None:
    """What that process has and finds; None if it cannot be asked. `elsewhere`: rank 0 is."""
    host, port = ("", 0) if point is None else point
    child = run_guarded("gpudiag.runs.meeting_look:stream_meeting", _SECONDS, pid, host, port, elsewhere)
    found = next((message for message in child.messages if message[0] == "meeting"), None)
    if found is None:
        return None
    _, addresses, reach, own_address = found
    return MeetingLook(
        None if addresses is None else decode(HostAddresses, addresses),
        None if reach is None else Reach(Obstacle(reach[0]), *reach[1:]),
        own_address,
    )


def stream_meeting(emit: Callable[[Any], None], pid: int, host: str, port: int, elsewhere: bool) -> None:
    """Send what the process finds; nothing where its environment or its namespaces may not be entered."""
    variables: dict[str, str] | None = None
    with contextlib.suppress(OSError):
        variables = read_environment(pid)
    if variables is None or not _enter_namespaces(pid):
        return
    addresses = read_host_addresses(variables)
    reach = look_at(Meeting(host, port, (), elsewhere)) if host else None
    emit(
        (
            "meeting",
            None if addresses is None else encode(addresses),
            None if reach is None else (reach.obstacle.value, reach.words, reach.place, reach.host),
            address_towards(host, port) if host else "",
        )
    )


def _enter_namespaces(pid: int) -> bool:
    """Whether this process now has the process's network, host name and files."""
    wanted = []
    for kind in _NAMESPACES:
        try:
            if os.readlink(f"/proc/{pid}/ns/{kind}") != os.readlink(f"/proc/self/ns/{kind}"):
                wanted.append(os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC))
        except OSError:
            return False
    setns = ctypes.CDLL(None, use_errno=True).setns
    return all(setns(descriptor, 0) == 0 for descriptor in wanted)
