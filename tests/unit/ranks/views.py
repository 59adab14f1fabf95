"""Ranks as tests of the watchdog want them."""

from typing import Any

from gpudiag.ranks.diagnosis.view import Life, RankView
from gpudiag.ranks.stages import Operation, Position


def position(
    stage: str = "measure",
    stage_count: int = 4,
    sequence: int | None = 0,
    inside: bool = True,
    **options: Any,
) -> Position:
    """A position in an all_reduce of 1024 floats that should take a millisecond."""
    operation = None
    if sequence is not None:
        announced = {"op": "all_reduce", "dtype": "float32", "elements": 1024, "predicted_seconds": 0.001}
        announced |= {key: options.pop(key) for key in tuple(options) if key in announced}
        operation = Operation(sequence=sequence, **announced)
    return Position(
        stage=stage,
        stage_count=stage_count,
        operation=operation,
        inside=inside and operation is not None,
        entered_at=100.0,
        moved_at=100.0,
        iteration=options.pop("iteration", None),
        place="train.py:12",
        **options,
    )


def view(rank: int, life: Life = Life.ALIVE, **options: Any) -> RankView:
    """A rank that is alive and waits inside collective 0."""
    options.setdefault("position", position())
    options.setdefault("pid", 1000 + rank)
    options.setdefault("seen_at", 10.0)
    return RankView(rank=rank, local_rank=rank, host="a1", life=life, **options)
