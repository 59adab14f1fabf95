"""How often each reading is read. Fast: what changes from second to second; slow: all but the identity.

A fast tick makes at most 12 NVML calls per GPU, as they cost a training job time: they serialise on the
driver's own locks. nvmlDeviceGetPcieThroughput blocks for 20 ms per direction by design and is not called.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpudiag.probe.host.processes import read_process
from gpudiag.probe.nvml.ask import Ask, DeviceSheet, code_of

FAST_SECONDS = 1.0
SLOW_SECONDS = 5.0

# nvmlReturn_t after which the whole library is unusable: uninitialized, driver not loaded, library and
# driver of different versions.
_LIFECYCLE_CODES = (1, 9, 18)


class WatchedAsk(Ask):
    """An Ask that notices when the driver itself has gone; `gone` is then the NVML code."""

    repeated = True
    gone: int | None = None

    def allowing(self, codes: Sequence[int], name: str, *arguments: Any, **named: Any) -> Any:
        """What that function of pynvml returns for this GPU; `codes` are no failures.

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
    """What /proc says about each process on the GPU, by pid; a stuck process may block this forever."""
    described = {}
    for process in sheet.values.get("processes", ()):
        ask.asking = f"/proc/{process['pid']}"
        described[process["pid"]] = read_process(process["pid"], root)
    return described
