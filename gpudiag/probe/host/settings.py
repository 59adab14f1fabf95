"""Who runs this, what the host's name resolves to, and the variables that steer CUDA, NCCL, gloo and torch."""

from __future__ import annotations

import os
import pwd
import socket
from collections.abc import Mapping
from typing import Any

from gpudiag.model.untrusted_text import mask_text
from gpudiag.probe.sheet import SOURCE_ABSENT, Absent, Sheet

_PREFIXES = ("NCCL_", "TORCH_", "PYTORCH_", "CUDA_", "GLOO_", "NSIGHT_", "OMP_", "TP_SOCKET_", "CUBLAS_")
_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LD_LIBRARY_PATH",
          "SLURM_NNODES", "SLURM_JOB_NUM_NODES",
          "LD_PRELOAD")  # fmt: skip
# NCCL's pre-shared key; tokens and keys of hubs that share a prefix with us.
_SECRET_WORDS = ("TOKEN", "KEY", "SECRET", "PASSWORD", "PSK")
_SET = "(set)"

_SIMULATED_USER = "ann"  # the user whose jobs run on simulated machines


def read_settings(root: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """A document of model.Settings: the variables with these prefixes or names, and NCCL's files."""
    sheet = Sheet()
    sheet.values["environment"] = {
        name: _shown(name, value)
        for name, value in sorted(environment.items())
        if name.startswith(_PREFIXES) or name in _NAMES
    }
    sheet.read("nccl_files", _nccl_files, root, environment)
    return sheet.document()


def _nccl_files(root: str, environment: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """The settings of each file that NCCL reads (its guide, "Environment Variables"), by the file's path."""
    users = environment.get("NCCL_CONF_FILE") or os.path.join(environment.get("HOME", "/root"), ".nccl.conf")
    found = {}
    for path in (users, "/etc/nccl.conf"):
        try:
            with open(os.path.join(root, path.lstrip("/"))) as file:
                found[path] = parse_nccl_file(file.read())
        except FileNotFoundError:
            continue
    return found


def parse_nccl_file(text: str) -> dict[str, str]:
    """The settings of a file of `NAME=value` lines; lines that start with # are comments."""
    rows = (line.partition("=") for line in text.splitlines() if line and not line.startswith("#"))
    return {name: _shown(name, value) for name, equals, value in rows if equals}


def _shown(name: str, value: str) -> str:
    """The value with secrets masked; `(set)` where the name marks it as a secret."""
    return _SET if any(word in name.upper() for word in _SECRET_WORDS) else mask_text(value)


def read_user(root: str = "/") -> str:
    """The name of the user that this process runs as, or its number where it has no name."""
    if root != "/":
        return _SIMULATED_USER
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def read_name_addresses(root: str = "/") -> list[str]:
    """The addresses that the host's own name resolves to, which other ranks and gloo would use.

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
    """The same from the host tree's /etc/hosts, the only source there."""
    with open(os.path.join(root, "proc/sys/kernel/hostname")) as file:
        name = file.read().strip()
    with open(os.path.join(root, "etc/hosts")) as file:
        rows = [line.partition("#")[0].split() for line in file]
    found = sorted({row[0] for row in rows if name in row[1:]})
    if not found:
        raise Absent(SOURCE_ABSENT, f"{name} does not resolve: it is not in /etc/hosts")
    return found
