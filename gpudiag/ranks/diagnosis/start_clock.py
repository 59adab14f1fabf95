"""Which ranks have come to the start so far, and until when the others may still come.

A late rank is healthy: nobody is blamed before the last one runs, and each that comes renews the wait.
"""

from collections.abc import Sequence

from gpudiag.ranks.diagnosis.view import Life, RankView


class StartClock:
    """How long ranks have waited for each other at the start; times are seconds since the run started."""

    def __init__(self, limit_seconds: float) -> None:
        """Wait that long for the next rank."""
        self._limit_seconds = limit_seconds
        self._came: set[int] = set()
        self._last_came = 0.0
        self._complete_after: float | None = None
        self._is_stopped = False

    def stop(self) -> None:
        """Wait for no further rank."""
        self._is_stopped = True

    def add(self, views: Sequence[RankView], now: float) -> tuple[RankView, ...]:
        """The views, in which no wait of the start is longer than all ranks' processes have been there."""
        came = {view.rank for view in views if view.agent_came}
        if came - self._came:
            self._came |= came
            self._last_came = now
        if any(view.life is Life.NOT_STARTED for view in views):
            self._complete_after = None
        elif self._complete_after is None:
            self._complete_after = now
        together = 0.0 if self._complete_after is None else now - self._complete_after
        return tuple(view.waited_at_most(together) for view in views)

    def over_after(self, led_after: float) -> float:
        """From when on no further rank comes, for an agent that leads since `led_after`.

        One that leads because it has waited in vain for a lower rank has waited long enough.
        """
        if self._is_stopped or led_after >= self._limit_seconds:
            return led_after
        return self._last_came + self._limit_seconds
