"""What is read how often. Fast: what moves from second to second; slow: everything but the identity.

A fast tick is at most 12 NVML calls a GPU, for calls are not free to a training job: they serialise on
the driver's own locks. nvmlDeviceGetPcieThroughput blocks for 20 ms a direction by design and is not asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpudiag.probe.host.processes import read_process
from gpudiag.probe.nvml.ask import Ask, DeviceSheet, code_of

FAST_SECONDS = 1.0
SLOW_SECONDS = 5.0

MAX_FAST_CALLS = 12  # of one GPU; a test counts them

# nvmlReturn_t after which the whole library is of no use any more: uninitialized, driver not loaded,
# library and driver of different versions.
_LIFECYCLE_CODES = (1, 9, 18)


class WatchedAsk(Ask):
    """Questions about one GPU that notice when the driver itself has gone; `gone` is that NVML code."""

    gone: int | None = None

    def allowing(self, codes: Sequence[int], name: str, *arguments: Any, **named: Any) -> Any:
        """What that function of pynvml returns for this GPU; `codes` are answers too.

        Raises:
            pynvml.NVMLError: the driver does not answer it.
        """
        try:
            return super().allowing(codes, name, *arguments, **named)
        except Exception as error:
            code = code_of(error)
            if code in _LIFECYCLE_CODES:
                self.gone = code
            raise


def describe_processes(ask: Ask, sheet: DeviceSheet, root: str) -> dict[int, dict[str, Any]]:
    """What /proc says about each process on the GPU, by pid; a stuck one may hold this up for ever."""
    described = {}
    for process in sheet.values.get("processes", ()):
        ask.asking = f"/proc/{process['pid']}"
        described[process["pid"]] = read_process(process["pid"], root)
    return described
