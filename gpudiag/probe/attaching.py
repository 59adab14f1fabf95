"""How long to wait for a driver that must first attach its GPUs.

Without persistence mode the first handle of each GPU makes the driver start it, one after the other. If the
program is killed before that, the driver stays cold.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

HANDLE_CALL = "nvmlDeviceGetHandleByIndex"
# Published: 3.1 to 4.3 s a GPU on 8 B200 with confidential computing (tinfoilsh/cvmimage pull request 363),
# more than 25 s for 8 A100 (Azure/AgentBaker pull request 2897).
SECONDS_PER_GPU = 5.0
# Own choice: a handle that comes sooner is of a GPU that was already attached; that takes under 1 ms.
COLD_SECONDS = 0.5


class Attaching:
    """Which GPU handles the driver has returned so far, by the messages of `nvml.child.stream_nvml`."""

    def __init__(self, messages: Sequence[Any]) -> None:
        """Read the messages that have come so far."""
        self.count = 0
        moments: list[tuple[float, float]] = []  # and how long it had no processor before that
        self._came: set[int] = set()
        for kind, *content in messages:
            if kind == "count":
                self.count = content[0]
            elif kind == "asleep":  # it is not asked for
                self._came.add(content[0])
            elif kind == "attaching":
                moments.append((content[0], 0.0))
            elif kind == "attached":
                self._came.add(content[0])
                moments.append((content[1], content[2] if len(content) > 2 else 0.0))
        moments.sort()
        self.last: float | None = moments[-1][0] if moments else None
        steps = [at - waited - before[0] for before, (at, waited) in pairwise(moments)]
        self._is_cold = any(step > COLD_SECONDS for step in steps)

    def pending(self) -> list[int]:
        """The indices of GPUs not attached yet; none where others came at once, as from a driver awake."""
        if self.last is None or (self._came and not self._is_cold):
            return []
        return [index for index in range(self.count) if index not in self._came]

    def until(self) -> float | None:
        """The deadline (`time.monotonic`) for the next handle; None where none is awaited."""
        waiting = len(self.pending())
        return self.last + SECONDS_PER_GPU * waiting if waiting and self.last is not None else None


def deadline_of(messages: Sequence[Any], started_at: float, seconds: float) -> float:
    """NVML's deadline (`time.monotonic`): `seconds` after the last handle, later while GPUs are pending."""
    attaching = Attaching(messages)
    since = started_at if attaching.last is None else max(started_at, attaching.last)
    until = attaching.until()
    return since + seconds if until is None else max(since + seconds, until)
