"""What the leading agent knows of a script's ranks: who stands still, who waits, who works, and for how long."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from gpudiag.checks.script_hang import describe_wait
from gpudiag.model.codec import decode
from gpudiag.model.script import ScriptPlace
from gpudiag.ranks.run import RankEvent
from gpudiag.reference.waits import FOR_OTHERS
from gpudiag.training.stack_watch import PATIENCE

# Ranks that wait in one collective say so within a look of each other.
_SETTLE_SECONDS = 1.5
ELSEWHERE = ScriptPlace("several places", work="its Python code moves")


def say_on_standard_error(sentence: str) -> None:
    """Show the user a sentence while the script runs."""
    print(f"gpudiag: {sentence}", file=sys.stderr, flush=True)


@dataclass
class ScriptWatch:
    """Follows what ranks tell of themselves; times are the agent's own."""

    world_size: int
    hang_seconds: float
    clock: Callable[[], float] = time.monotonic
    say: Callable[[str], None] = say_on_standard_error
    still: dict[int, ScriptPlace] = field(default_factory=dict)
    working: dict[int, ScriptPlace] = field(default_factory=dict)
    raised: dict[int, ScriptPlace] = field(default_factory=dict)
    finished: set[int] = field(default_factory=set)
    groups: dict[int, int] = field(default_factory=dict)
    _still_since: dict[int, float] = field(default_factory=dict)
    _told: tuple[tuple[int, str], ...] = ()

    def take(self, event: RankEvent) -> None:
        """Take what a rank told."""
        kind, rank = event.data.get("kind"), event.rank
        if kind in ("still", "works", "raised"):
            place = decode(ScriptPlace, event.data)
            {"still": self.still, "works": self.working, "raised": self.raised}[kind][rank] = place
        if kind == "still":
            self._still_since.setdefault(rank, self.clock() - self.hang_seconds)
            self.working.pop(rank, None)
        elif kind in ("works", "moves", "done"):
            self.still.pop(rank, None)
            self._still_since.pop(rank, None)
        if kind in ("moves", "done"):
            self.working.pop(rank, None)
        if kind == "done":
            self.finished.add(rank)
        if kind in ("group", "done"):
            self.groups[rank] = max(self.groups.get(rank, 0), event.data["size"])

    def is_over(self) -> bool:
        """Whether every rank stands still, or has waited too long for one that works; tells of long waits meanwhile."""
        if self.sees_hang():
            return True
        waiting = self.waiting_ranks()
        if not waiting:
            return False
        self._tell_of(waiting)
        since = min(self._still_since[rank] for rank in waiting)
        return self.clock() - since >= self.patience_seconds

    def sees_hang(self) -> bool:
        """Whether every rank stands still, or has finished, and one at least has not."""
        return bool(self.still) and len(self.still) + len(self.finished) == self.world_size

    def waiting_ranks(self) -> list[int]:
        """Those that stand still because they wait for other ranks."""
        return sorted(rank for rank, place in self.still.items() if place.awaited in FOR_OTHERS)

    @property
    def patience_seconds(self) -> float:
        """How long ranks may wait for one that works."""
        return PATIENCE * self.hang_seconds

    def _tell_of(self, waiting: list[int]) -> None:
        """Say once who waits for whom, when it is known what the others do, or will not be."""
        others = set(range(self.world_size)) - set(waiting) - self.finished
        unknown = others - self.working.keys() - self.still.keys()
        waited = self.clock() - max(self._still_since[rank] for rank in waiting)
        known_after = 2 * self.hang_seconds if unknown else self.hang_seconds + _SETTLE_SECONDS
        if waited < known_after or not others - self.still.keys():
            return
        working = self.working | dict.fromkeys(unknown, ELSEWHERE)
        told = tuple((rank, (self.still.get(rank) or working[rank]).place) for rank in sorted(others))
        if told == self._told:
            return
        self._told = told
        self.say(
            f"{describe_wait(self.still, working)}. That may be in order, and the run goes on; gpudiag ends it "
            f"once they have waited for {self.patience_seconds:.0f} s ({PATIENCE:.0f} times --hang-after)"
        )
