"""The entry of the child that asks NVML: nvmlInit (35 ms) runs while Python loads what will ask it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from ctypes import CDLL
from threading import Thread
from typing import Any

from gpudiag.probe.given_time import note_end_of_thread
from gpudiag.probe.nvml import LIBRARY
from gpudiag.probe.sleeping import read_sleeping


def stream_nvml(emit: Callable[[Any], None], root: str = "/", wake: bool = True) -> None:
    """What `child.stream_nvml` sends; without `wake`, sleeping GPUs stay so, and NVML if all sleep."""
    count, asleep = (0, {}) if wake else read_sleeping(root)
    if asleep and len(asleep) == count:
        emit(("all_asleep", list(asleep.values())))
        return
    initialization = Thread(target=_initialize, daemon=True)
    initialization.start()
    from gpudiag.probe.nvml.child import stream_nvml

    stream_nvml(emit, root, initialization.join, asleep=asleep, bound=count)


def _initialize() -> None:
    """Initialise the library; what keeps it from that is reported by the call of pynvml."""
    with suppress(OSError, AttributeError):
        CDLL(LIBRARY).nvmlInitWithFlags(0)
    note_end_of_thread()
