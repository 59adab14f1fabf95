"""How ranks of one process group differ by the job's own records: behind, elsewhere, gone, or all wait."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpudiag.checks.training.kinds import verb
from gpudiag.compat import StrEnum
from gpudiag.model.evidence import Evidence


class Apart(StrEnum):
    """What sets some ranks apart from the others of their group."""

    BEHIND = "behind"  # they have not launched what the others wait in
    ELSEWHERE = "elsewhere"  # they are in another collective
    OTHER_SIZE = "other_size"
    CROSSED = "crossed"  # they wait in two groups for each other
    GPU = "gpu"  # they have launched it, and their GPU has not begun it
    DEAD = "dead"
    UNRESPONSIVE = "unresponsive"
    LEFT = "left"  # they have finalized or aborted the communicator
    FAILED = "failed"
    NONE = "none"  # all are in the same collective, and nothing moves


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference: the ranks to blame, those that wait for them, and a sentence without its full stop.

    `is_within_group`: ranks count within the group, as which of the job they are is unknown.
    """

    apart: Apart
    ranks: tuple[int, ...]
    waiting: tuple[int, ...]
    group: str  # for people: `the default group`
    message: str
    source: str  # `flight recorder`, `NCCL RAS`
    evidence: tuple[Evidence, ...] = ()
    is_within_group: bool = False


def name_many(ranks: Sequence[int]) -> str:
    """`rank 2`, `ranks 0, 1 and 3`, `ranks 0-6 and 8`; how many where they are a thousand scattered ones."""
    runs = _runs(ranks)
    words = [str(first) if first == last else f"{first}-{last}" for first, last in runs]
    if len(words) > 12:
        return f"{len(set(ranks))} ranks ({', '.join(words[:8])} ...)"
    text = f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else "".join(words)
    return f"rank {text}" if len(set(ranks)) == 1 else f"ranks {text}"


def _runs(ranks: Iterable[int]) -> list[tuple[int, int]]:
    """Consecutive ranks as first and last; two in a row stay two."""
    runs: list[tuple[int, int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], rank)
        else:
            runs.append((rank, rank))
    spread: list[tuple[int, int]] = []
    for first, last in runs:
        spread += [(first, first), (last, last)] if last == first + 1 else [(first, last)]
    return spread


def wait(ranks: Sequence[int]) -> str:
    """`waits` or `wait`."""
    return verb(ranks, "waits", "wait")


def has(ranks: Sequence[int]) -> str:
    """`has` or `have`."""
    return verb(ranks, "has", "have")
