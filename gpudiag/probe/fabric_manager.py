"""Whether the fabric manager, which sets up NVSwitches, runs, and of which version it is."""

from __future__ import annotations

import os
import re

from gpudiag.probe.sheet import ERROR, Absent, Sheet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# The kernel keeps 15 characters of a program's name. Reading `comm` cannot block, as `cmdline` can.
_COMMAND = "nv-fabricmanager"[:15]
_LOG = "var/log/fabricmanager.log"
_LOG_BYTES = 1 << 20  # of its end
_VERSION = re.compile(rb"fabric manager version\D{0,8}(\d+\.[\d.]+\d)", re.IGNORECASE)


def read_fabric_manager(root: str = "/") -> dict[str, Any]:
    """A sheet's document of model.FabricManager."""
    sheet = Sheet()
    sheet.values["running"] = any(_command(root, pid) == _COMMAND for pid in _pids(root))
    sheet.read("version", _version, root)
    return sheet.document()


def _pids(root: str) -> list[str]:
    return [name for name in os.listdir(os.path.join(root, "proc")) if name.isdecimal()]


def _command(root: str, pid: str) -> str:
    try:
        with open(os.path.join(root, "proc", pid, "comm")) as file:
            return file.read().strip()
    except OSError:  # it ended meanwhile, or is hidden from this user
        return ""


def _version(root: str) -> str:
    """The version that it wrote to its log when it last started.

    Raises:
        Absent: the log does not say.
    """
    with open(os.path.join(root, _LOG), "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_BYTES))
        found = _VERSION.findall(file.read())
    if not found:
        raise Absent(ERROR, f"/{_LOG} names no version")
    return str(found[-1].decode())
