"""Who gives frames: this machine, services of others, a recording. The screen knows this much of them."""

from collections.abc import Callable
from typing import Protocol

from gpudiag.watch.frame import Frame


class Feed(Protocol):
    """A source of frames; nothing in it may wait for a driver or a network."""

    @property
    def frames(self) -> tuple[Frame, ...]:
        """Each machine as it is known now; at least one."""

    @property
    def note(self) -> str:
        """What the first line shows of a recording or a replay; empty where there is none."""

    async def run(self, changed: Callable[[], None]) -> None:
        """Gather until cancelled, and leave no process behind; `changed` is called after each news."""

    def seek(self, seconds: float) -> None:
        """Go that far on, or back, in a recording."""

    def hold(self, *, is_held: bool) -> None:
        """Stand still, in a recording, or go on."""
