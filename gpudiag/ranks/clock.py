"""How far another machine's clock is from ours, measured by messages that go there and back."""

from collections import deque
from dataclasses import dataclass

# Of the last 20 exchanges the one with the shortest round trip counts: it has the smallest error.
_KEPT_EXCHANGES = 20


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """Seconds to subtract from a time on the other clock to get it on ours, and the largest error of that."""

    seconds: float
    error_seconds: float


SAME_CLOCK = ClockOffset(0.0, 0.0)


class ClockComparison:
    """Exchanges with one other agent: when we asked, what its clock read, when the answer came."""

    def __init__(self) -> None:
        """Start without an exchange."""
        self._exchanges: deque[ClockOffset] = deque(maxlen=_KEPT_EXCHANGES)

    def add(self, asked_at: float, theirs: float, answered_at: float) -> None:
        """Add an exchange; the other clock was read some time between our two times."""
        middle, half = (asked_at + answered_at) / 2, (answered_at - asked_at) / 2
        self._exchanges.append(ClockOffset(theirs - middle, half))

    @property
    def is_complete(self) -> bool:
        """Whether more exchanges would only replace earlier ones."""
        return len(self._exchanges) == _KEPT_EXCHANGES

    def offset(self) -> ClockOffset | None:
        """The offset with the smallest error; None before the first exchange."""
        return min(self._exchanges, key=lambda exchange: exchange.error_seconds, default=None)
