"""A driver that attaches its GPUs first: how long that may take, and how long to wait for it.

Without persistence mode nothing holds a GPU while no program uses it. The first handle of each then makes the
driver start it, one GPU after the other. A program that is killed meanwhile leaves the driver as cold as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

HANDLE_CALL = "nvmlDeviceGetHandleByIndex"
# Published: 3.1 to 4.3 s a GPU on 8 B200 with confidential computing (tinfoilsh/cvmimage pull request 363), more than
# 25 s for 8 A100 (Azure/AgentBaker pull request 2897).
SECONDS_PER_GPU = 5.0
# Own choice: a handle that comes sooner is one of a GPU that was attached already; that takes under a millisecond.
COLD_SECONDS = 0.5


class Attaching:
    """How far a driver is with handing out its GPUs' handles, by the messages of `nvml.stream_nvml`."""

    def __init__(self, messages: Sequence[Any]) -> None:
        """Read the messages that have come so far."""
        self.count = 0
        moments: list[float] = []
        self._came: set[int] = set()
        for kind, *content in messages:
            if kind == "count":
                self.count = content[0]
            elif kind == "attaching":
                moments.append(content[0])
            elif kind == "attached":
                self._came.add(content[0])
                moments.append(content[1])
        moments.sort()
        self.last: float | None = moments[-1] if moments else None
        steps = [moments[place] - moments[place - 1] for place in range(1, len(moments))]
        self._is_cold = any(step > COLD_SECONDS for step in steps)

    def pending(self) -> list[int]:
        """The GPUs that may be being attached: where others came at once, the driver is awake, and none is."""
        if self.last is None or (self._came and not self._is_cold):
            return []
        return [index for index in range(self.count) if index not in self._came]

    def until(self) -> float | None:
        """Until when (`time.monotonic`) the next handle may take; None where none is waited for."""
        waiting = len(self.pending())
        return self.last + SECONDS_PER_GPU * waiting if waiting and self.last is not None else None


def deadline_of(messages: Sequence[Any], started_at: float, seconds: float) -> float:
    """When NVML has had its time (`time.monotonic`): that many seconds after the last GPU's handle came."""
    attaching = Attaching(messages)
    since = started_at if attaching.last is None else max(started_at, attaching.last)
    until = attaching.until()
    return since + seconds if until is None else max(since + seconds, until)
