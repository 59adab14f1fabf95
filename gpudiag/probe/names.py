"""Who runs this, and what the host's own name resolves to."""

from __future__ import annotations

import os
import pwd
import socket

from gpudiag.probe.sheet import SOURCE_ABSENT, Absent

_SIMULATED_USER = "ann"  # the user whose jobs run on simulated machines


def read_user(root: str = "/") -> str:
    """The name of the user that this process runs as, or its number where it has no name."""
    if root != "/":
        return _SIMULATED_USER
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def read_name_addresses(root: str = "/") -> list[str]:
    """The addresses that the host's own name resolves to: what other ranks, and gloo, would be told.

    Raises:
        Absent: the name does not resolve.
    """
    if root != "/":
        return _in_hosts_file(root)
    name = socket.gethostname()
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise Absent(SOURCE_ABSENT, f"{name} does not resolve: {error.strerror}") from None
    return sorted({str(address[4][0]) for address in found})


def _in_hosts_file(root: str) -> list[str]:
    """The same by the host tree's own files, for nothing else may be asked there."""
    with open(os.path.join(root, "proc/sys/kernel/hostname")) as file:
        name = file.read().strip()
    with open(os.path.join(root, "etc/hosts")) as file:
        rows = [line.partition("#")[0].split() for line in file]
    found = sorted({row[0] for row in rows if name in row[1:]})
    if not found:
        raise Absent(SOURCE_ABSENT, f"{name} does not resolve: it is not in /etc/hosts")
    return found
