"""Whether a rank that wakes up now and then stands all the same, at one place, with hardly any work.

To its pulse a poll is a step. Two glances at the stack, at the same lines with the same objects, show it;
since when, its processor time shows to a second, else the first glance.
"""

from collections.abc import Sequence

from gpudiag.checks.job.polling import stood
from gpudiag.model.job import Frame
from gpudiag.model.job_run import Pulse

# A loop that asks a hundred times a second takes a hundredth of a processor; a step takes more in one of its
# seconds.
_QUIET_SHARE = 0.04
_SECOND = 1.0
_UNSEEN_SECONDS, _AGAIN_SECONDS = 4.0, 2.5
# Beside what all glances may take: some at once, and then one in a minute, which is 0.03 % of a processor.
_GLANCES_AT_ONCE, _GLANCE_EVERY_SECONDS = 6, 60.0


class Standing:
    """Follows one rank by its pulses and by where glances saw it."""

    def __init__(self) -> None:
        """Nothing was seen yet."""
        self._anchor: Pulse | None = None
        self._busy_at: float | None = None  # the end of the last second in which it took processor time
        self._frames: Sequence[Frame] = ()  # at the last glance
        self._first = self._last = 0.0  # glances at this place
        self._count = 0
        self._differed_at: float | None = None  # the last glance at another one
        self._asked = 0

    @property
    def since_seconds(self) -> float | None:
        """Since when it has stood, by the agent's clock; None where it moves, or was not seen twice."""
        if self._count < 2:
            return None
        known = [one for one in (self._busy_at, self._differed_at) if one is not None]
        return min(self._first, max(known)) if len(known) == 2 else self._first

    def add(self, pulse: Pulse) -> None:
        """Take a pulse."""
        if self._anchor is None:
            self._anchor, self._busy_at = pulse, pulse.at_seconds
            return
        passed = pulse.at_seconds - self._anchor.at_seconds
        if passed >= _SECOND:
            if pulse.ran_seconds - self._anchor.ran_seconds > _QUIET_SHARE * passed:
                self._busy_at = pulse.at_seconds
            self._anchor = pulse

    def note(self, at_seconds: float, frames: Sequence[Frame]) -> None:
        """Take a glance at its main thread's stack."""
        if stood(self._frames, frames):
            self._count += 1
        else:
            self._differed_at = self._last if self._count else self._differed_at
            self._first, self._count = at_seconds, 1
        self._last, self._frames = at_seconds, frames

    def note_movement(self, at_seconds: float) -> None:
        """Forget where it stood: it was seen to move, or nobody could see."""
        self._frames, self._count, self._differed_at = (), 0, at_seconds

    def wants_glance(self, now: float) -> bool:
        """Whether a glance now would show whether it stands; it is counted, and they are few."""
        if self._anchor is None or self._asked >= _GLANCES_AT_ONCE + now / _GLANCE_EVERY_SECONDS:
            return False
        quiet = self._busy_at is not None and now - self._busy_at >= _UNSEEN_SECONDS
        if not (quiet or any(frame.polls for frame in self._frames)):
            return False
        wants = now - self._last >= (_AGAIN_SECONDS if self._count < 3 else 4 * _AGAIN_SECONDS)
        self._asked += wants
        return wants
