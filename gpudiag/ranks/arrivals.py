"""When a rank came to each timed collective, and when it left it: what lateness is judged by."""

from collections import deque
from dataclasses import dataclass

from gpudiag.ranks.host_use import HostUse, read_host_use
from gpudiag.ranks.process import read_machine

# Enough to tell a straggler, little enough to send: two numbers per iteration.
_KEPT_ITERATIONS = 4000


@dataclass(frozen=True, slots=True)
class Arrivals:
    """One rank's timed iterations: CLOCK_MONOTONIC of its machine, in nanoseconds."""

    clock: str  # ranks with the same one share it
    first_iteration: int
    arrived: tuple[int, ...]
    left: tuple[int, ...]
    host_use: HostUse  # growth between the first iteration and the end of the entry
    # Whether the rank had seen the end of all that came before. Where it had not, because a GPU still worked,
    # it comes as much later as it came to the collective before that. Empty: it always had.
    awaited: tuple[bool, ...] = ()


class ArrivalRecorder:
    """A rank's own record; costs two appends per timed iteration. Moments are CLOCK_MONOTONIC in nanoseconds."""

    def __init__(self) -> None:
        """Nothing is recorded before the first timed iteration."""
        self._arrived: deque[int] = deque(maxlen=_KEPT_ITERATIONS)
        self._left: deque[int] = deque(maxlen=_KEPT_ITERATIONS)
        self._last_iteration = -1
        self._seen_ends: deque[bool] = deque(maxlen=_KEPT_ITERATIONS)
        self._started = False  # an iteration has started, and its collective has not
        self._ahead = False  # of what a GPU has still to do
        self._inside = False
        self._before: HostUse | None = None

    def start_iteration(self, iteration: int) -> None:
        """The next collective is that of this timed iteration."""
        if self._before is None:
            self._before = read_host_use()
        self._last_iteration = iteration
        self._started = True

    def arrive(self, now_ns: int) -> None:
        """The rank is about to enter a collective; only the first one of an iteration counts."""
        if self._started:
            self._started, self._inside = False, True
            self._arrived.append(now_ns)
            self._seen_ends.append(not self._ahead)

    def leave(self, now_ns: int, *, queued: bool = False) -> None:
        """The rank came back from a collective; `queued`: when that was queued."""
        self._ahead = queued
        if self._inside:
            self._inside = False
            self._left.append(now_ns)

    def read(self) -> Arrivals | None:
        """What was recorded; None if nothing was timed, or an iteration was left half way."""
        if self._before is None or len(self._arrived) != len(self._left) or not self._arrived:
            return None
        return Arrivals(
            clock=read_machine().clock,
            first_iteration=self._last_iteration + 1 - len(self._arrived),
            arrived=tuple(self._arrived),
            left=tuple(self._left),
            host_use=read_host_use().since(self._before),
            awaited=() if all(self._seen_ends) else tuple(self._seen_ends),
        )
