"""What the NVIDIA kernel driver says in /proc/driver/nvidia, without NVML."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

from gpudiag.probe.host.pci import bus_id_of_address
from gpudiag.probe.sheet import ERROR, Absent

_VERSION = re.compile(r"NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s")
_UUID = re.compile(r"GPU UUID:\s+(GPU-[0-9a-fA-F-]+)\s")


def read_kernel_driver(root: str = "/") -> tuple[str, str]:
    """The version of the loaded kernel driver, and its flavor: `open` or `proprietary`.

    This file is plain text in the driver's memory; reading it cannot block.

    Raises:
        FileNotFoundError: the driver is not loaded.
    """
    with open(os.path.join(root, "proc/driver/nvidia/version")) as file:
        return parse_kernel_driver(file.read())


def parse_kernel_driver(text: str) -> tuple[str, str]:
    """Version and flavor in the text of /proc/driver/nvidia/version.

    Raises:
        Absent: it names no version.
    """
    version = _VERSION.search(f"{text}\n")
    if version is None:
        raise Absent(ERROR, f"no version in {text[:80]!r}")
    return version[1], "open" if "Open Kernel Module" in text else "proprietary"


def stream_driver_gpus(emit: Callable[[Any], None], root: str = "/") -> None:
    """Send ("gpu", BUS_ID, UUID or None) for each GPU that the driver knows.

    Run in a guarded child: these files take the driver's locks, which a hung GPU may hold.
    """
    directory = os.path.join(root, "proc/driver/nvidia/gpus")
    for address in sorted(os.listdir(directory)):
        with open(os.path.join(directory, address, "information")) as file:
            emit(("gpu", bus_id_of_address(address), parse_uuid(file.read())))


def parse_uuid(text: str) -> str | None:
    """The UUID in a GPU's `information` file; None while the driver shows question marks for it."""
    found = _UUID.search(f"{text}\n")
    return found[1] if found else None
