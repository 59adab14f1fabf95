"""Ranks that nothing names, named by what is left."""

from dataclasses import replace

from gpudiag.model.job import KnownBy, RankSeen
from gpudiag.model.reading import Missing, MissingReason, Reading
from gpudiag.probe.job.gather import _with_last_number

UNKNOWN = Missing(MissingReason.NOT_SUPPORTED, "its rank is unknown")


def rank(pid: int, number: Reading[int]) -> RankSeen:
    return RankSeen(pid, number, number, KnownBy.NOTHING, "python train.py", 9.0, "0")


def test_the_only_rank_without_a_number_has_the_one_that_is_left() -> None:
    ranks = [rank(10, 0), rank(11, UNKNOWN), rank(12, 2)]
    assert [one.rank for one in _with_last_number(ranks, 3)] == [0, 1, 2]
    assert _with_last_number(ranks, 4) == ranks  # one is gone, or on another machine
    assert _with_last_number(ranks, UNKNOWN) == ranks
    two = [ranks[0], ranks[1], replace(ranks[2], rank=UNKNOWN)]
    assert _with_last_number(two, 3) == two
