"""Which rank handed in a flipped bit: told by the average alone, where one bit of one rank's gradient
explains it.
"""

import itertools

import pytest
import torch

from benchmarks.planted.planting import flip
from gpudiag.training.gradient_diagnosis import find_flipped_ranks, is_flipped

RANKS = (2, 3, 4, 8)
FRACTION = 23  # bits of a float32 below its exponent


def gradients_of(ranks: int, seed: int) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    return [0.1 * torch.randn(2) for _ in range(ranks)]


def average(gradients: list[torch.Tensor], divided_first: bool) -> torch.Tensor:
    ranks = len(gradients)
    if divided_first:
        return torch.stack([one / ranks for one in gradients]).sum(0)
    return torch.stack(gradients).sum(0) / ranks


@pytest.mark.sliced
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("bit", [20, 23, 25, 27, 29, 31])
def test_the_rank_of_a_flipped_bit_is_always_among_those_named(ranks: int, bit: int) -> None:
    alone = 0
    for seed, guilty in itertools.product(range(20), range(ranks)):
        own = gradients_of(ranks, seed)
        handed_in = [one.clone() for one in own]
        flip(handed_in[guilty], place=1, bit=bit)
        found = average(handed_in, divided_first=False).double()
        told = find_flipped_ranks(found[1:], [one[1:].double() for one in own])
        assert guilty in told
        alone += told == (guilty,)
    # A bit of the fraction adds a power of two, which is one flip of several ranks' numbers.
    assert alone >= (0 if bit < FRACTION else 18 * ranks)


def test_a_flip_behind_the_division_is_told_too() -> None:
    own = [one / 3 for one in gradients_of(3, 1)]
    handed_in = [one.clone() for one in own]
    flip(handed_in[2], place=0)
    found = torch.stack(handed_in).sum(0).double()
    assert find_flipped_ranks(found[:1], [3 * one[:1].double() for one in own]) == (2,)


def test_a_flipped_average_is_told_from_what_was_handed_in() -> None:
    for seed in range(20):
        own = gradients_of(4, seed)
        found = average(own, divided_first=True)
        wanted = found.double()
        flip(found, place=0)
        assert is_flipped(found[:1].double(), wanted[:1])
        assert find_flipped_ranks(found[:1].double(), [one[:1].double() for one in own]) == ()


def test_another_number_is_no_flip() -> None:
    for seed in range(50):
        own = gradients_of(3, seed)
        wanted = average(own, divided_first=True).double()
        found = wanted + 0.0123
        assert not is_flipped(found, wanted)
        assert find_flipped_ranks(found, [one.double() for one in own]) == ()
