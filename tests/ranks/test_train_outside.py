"""Faults planted in torch from outside, on two, three and four ranks: the cause is named, and the right rank.

The whole matrix is benchmarks/train_outside_faults.py; each of these was told by a wrong cause, or by none,
before.
"""

import re

import pytest

from benchmarks.train_outside_faults import FAULTS, PLANTED, cause_of, names_cause, train_with

pytestmark = [pytest.mark.ranks, pytest.mark.sliced, pytest.mark.timeout(180)]


@pytest.mark.parametrize(
    ("fault", "ranks"),
    [
        ("bit_of_average", 2),
        ("bit_of_own_gradient", 3),
        ("bit_on_the_way", 4),
        ("bit_of_parameter", 2),
        ("bits_of_sharded_gradient", 3),
        ("bit_of_own_gradient_before_shards", 3),
        ("bit_handed_in_for_shards", 4),
        ("number_handed_in_for_shards", 3),
        ("buffer_of_one_rank", 2),
        ("divided_by_others", 4),
        ("clipped_before_averaging", 3),
        ("one_rank_not_counted", 3),
        ("pairs", 4),
        ("late_averages", 3),
        ("tensor_not_in_one_optimizer", 2),
        ("labels_of_one_rank", 4),
        ("layer_not_sharded", 2),
        ("exception_on_all_ranks", 3),
        ("sharded_clipped_by_own_norm", 2),
        ("momentum_lost_on_one_rank", 2),
        ("frozen_on_one_rank", 2),
    ],
)
def test_the_cause_of_a_fault_from_outside_is_named(fault: str, ranks: int) -> None:
    cause = cause_of(fault, ranks)
    report = train_with(fault, "--nproc", str(ranks), "--strategy", cause.strategy, *cause.flags)
    first = report["findings"][0]
    assert names_cause(first, cause), (first["code"], first["subject"], first["owner"], first["message"])


@pytest.mark.each_run
def test_every_planted_fault_has_a_cause_that_must_be_named() -> None:
    texts = [path.read_text() for path in PLANTED.glob("*.py")]
    planted = {name for text in texts for name in re.findall(r"@fault\ndef (\w+)\(", text)}
    assert set(FAULTS) == planted
    assert len(FAULTS) >= 40
