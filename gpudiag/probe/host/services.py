"""Services of the host: what sets its clock, and the fabric manager that sets up NVSwitches."""

from __future__ import annotations

import ctypes
import os
import re
from typing import Any

from gpudiag.probe.sheet import ERROR, SOURCE_ABSENT, Absent, Sheet

_TIMEX_BYTES = 512  # more than sizeof(struct timex) anywhere; with modes = 0 the call only reads
_TIME_ERROR = 5  # adjtimex(2): the clock is not synchronized
_SYNCHRONIZED_FILE = "run/systemd/timesync/synchronized"

# The kernel keeps 15 characters of a program's name. Reading `comm` cannot block, as `cmdline` can.
_COMMAND = "nv-fabricmanager"[:15]
_LOG = "var/log/fabricmanager.log"
_LOG_BYTES = 1 << 20  # read from its end
_VERSION = re.compile(rb"fabric manager version\D{0,8}(\d+\.[\d.]+\d)", re.IGNORECASE)


def read_clock(root: str = "/") -> dict[str, Any]:
    """A sheet's document of model.ClockState."""
    directory = os.path.join(root, "sys/devices/system/clocksource/clocksource0")
    sheet = Sheet()
    sheet.read("source", _line, directory, "current_clocksource")
    sheet.read("sources_available", lambda: _line(directory, "available_clocksource").split())
    sheet.read("synchronized", _is_synchronized, root)
    return sheet.document()


def _is_synchronized(root: str) -> bool:
    """Whether the clock is synchronized, by adjtimex(2); under another root, by systemd-timesyncd's file.

    Raises:
        Absent: nothing under this root says so.
    """
    if root != "/":
        if os.path.exists(os.path.join(root, _SYNCHRONIZED_FILE)):
            return True
        raise Absent(SOURCE_ABSENT, "nothing under this root says so")
    adjtimex = ctypes.CDLL(None, use_errno=True).adjtimex
    state: int = adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    if state < 0:
        raise OSError(ctypes.get_errno(), "adjtimex")
    return state != _TIME_ERROR


def _line(directory: str, name: str) -> str:
    with open(os.path.join(directory, name)) as file:
        return file.read().strip()


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
    except OSError:  # it has just ended, or is hidden from this user
        return ""


def _version(root: str) -> str:
    """The version that the fabric manager logged when it last started.

    Raises:
        Absent: the log does not say.
    """
    with open(os.path.join(root, _LOG), "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_BYTES))
        found = _VERSION.findall(file.read())
    if not found:
        raise Absent(ERROR, f"/{_LOG} names no version")
    return str(found[-1].decode())
