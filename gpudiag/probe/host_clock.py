"""What the kernel counts time by, and whether a time server sets it."""

from __future__ import annotations

import ctypes
import os

from gpudiag.probe.sheet import SOURCE_ABSENT, Absent, Sheet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_TIMEX_BYTES = 512  # more than sizeof(struct timex) anywhere; with modes = 0 the call only reads
_TIME_ERROR = 5  # adjtimex(2): the clock is not synchronized
_SYNCHRONIZED_FILE = "run/systemd/timesync/synchronized"


def read_clock(root: str = "/") -> dict[str, Any]:
    """A sheet's document of model.ClockState."""
    directory = os.path.join(root, "sys/devices/system/clocksource/clocksource0")
    sheet = Sheet()
    sheet.read("source", _line, directory, "current_clocksource")
    sheet.read("sources_available", lambda: _line(directory, "available_clocksource").split())
    sheet.read("synchronized", _is_synchronized, root)
    return sheet.document()


def _is_synchronized(root: str) -> bool:
    """What adjtimex(2) says; under another root, whether systemd-timesyncd left its sign.

    Raises:
        Absent: nothing under this root says it.
    """
    if root != "/":
        if os.path.exists(os.path.join(root, _SYNCHRONIZED_FILE)):
            return True
        raise Absent(SOURCE_ABSENT, "nothing under this root says it")
    adjtimex = ctypes.CDLL(None, use_errno=True).adjtimex
    state: int = adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    if state < 0:
        raise OSError(ctypes.get_errno(), "adjtimex")
    return state != _TIME_ERROR


def _line(directory: str, name: str) -> str:
    with open(os.path.join(directory, name)) as file:
        return file.read().strip()
