"""How far another machine's clock is from ours, by messages that go there and back."""

from collections import deque
from dataclasses import dataclass

# Of so many exchanges the one with the shortest way counts: it had the least to be wrong by.
_KEPT_EXCHANGES = 20


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """What to subtract from a moment on the other clock to get it on ours, and by how much that may err."""

    seconds: float
    error_seconds: float


SAME_CLOCK = ClockOffset(0.0, 0.0)


class ClockComparison:
    """Exchanges with one other agent: when we asked, what its clock said, when the answer came."""

    def __init__(self) -> None:
        """No exchange yet."""
        self._exchanges: deque[ClockOffset] = deque(maxlen=_KEPT_EXCHANGES)

    def add(self, asked_at: float, theirs: float, answered_at: float) -> None:
        """Add an exchange; the other clock was read somewhere between our two moments."""
        middle, half = (asked_at + answered_at) / 2, (answered_at - asked_at) / 2
        self._exchanges.append(ClockOffset(theirs - middle, half))

    @property
    def is_complete(self) -> bool:
        """Whether more exchanges would only take the place of earlier ones."""
        return len(self._exchanges) == _KEPT_EXCHANGES

    def offset(self) -> ClockOffset | None:
        """The best that is known; None before the first exchange."""
        return min(self._exchanges, key=lambda exchange: exchange.error_seconds, default=None)
