"""The exact data: right sums in any order pass bit for bit, and every fault of the catalogue shows."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudiag.collectives.pattern import Pattern, as_bits, sum_pattern
from gpudiag.collectives.verify import compare
from gpudiag.model.plan import DTYPES

ELEMENTS = 257  # odd: no power of two hides an offset
CPU = torch.device("cpu")

dtypes = st.sampled_from(DTYPES)
world_sizes = st.integers(min_value=2, max_value=8)
rounds = st.integers(min_value=0, max_value=200)


def patterns(dtype: str, world_size: int, elements: int = ELEMENTS) -> list[Pattern]:
    return [sum_pattern(dtype, rank, world_size, elements, CPU) for rank in range(world_size)]


def contributions(ranks: list[Pattern], round_number: int, elements: int = ELEMENTS) -> list[torch.Tensor]:
    return [pattern.contribution(round_number, elements) for pattern in ranks]


def total(tensors: list[torch.Tensor]) -> torch.Tensor:
    result = tensors[0].clone()
    for tensor in tensors[1:]:
        result += tensor
    return result


@given(dtypes, st.integers(min_value=1, max_value=40), rounds, st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_any_order_and_tree_of_summation_is_exact(
    dtype: str, world_size: int, round_number: int, source
) -> None:  # type: ignore[no-untyped-def]
    ranks = patterns(dtype, world_size)
    parts = [tensor.clone() for tensor in contributions(ranks, round_number)]
    while len(parts) > 1:
        source.shuffle(parts)
        parts.append(parts.pop() + parts.pop())
    assert compare(parts[0], ranks[0].expectation(round_number, ELEMENTS)) is None


@given(dtypes, world_sizes, rounds, st.data())
@settings(max_examples=60, deadline=None)
def test_a_dropped_contribution_changes_every_element(
    dtype: str, world_size: int, round_number: int, data: st.DataObject
) -> None:
    ranks = patterns(dtype, world_size)
    dropped = data.draw(st.integers(0, world_size - 1))
    rest = [part for rank, part in enumerate(contributions(ranks, round_number)) if rank != dropped]
    wrong = compare(total(rest), ranks[0].expectation(round_number, ELEMENTS))
    assert wrong is not None
    assert wrong.count == ELEMENTS


@given(dtypes, world_sizes, rounds, st.data())
@settings(max_examples=60, deadline=None)
def test_a_contribution_counted_instead_of_another_changes_every_element(
    dtype: str, world_size: int, round_number: int, data: st.DataObject
) -> None:
    ranks = patterns(dtype, world_size)
    twice, never = data.draw(st.permutations(range(world_size)))[:2]
    parts = contributions(ranks, round_number)
    parts[never] = parts[twice]
    wrong = compare(total(parts), ranks[0].expectation(round_number, ELEMENTS))
    assert wrong is not None
    assert wrong.count == ELEMENTS


@given(dtypes, world_sizes, rounds, st.integers(min_value=1, max_value=64), st.data())
@settings(max_examples=60, deadline=None)
def test_a_shifted_contribution_is_found(
    dtype: str, world_size: int, round_number: int, shift: int, data: st.DataObject
) -> None:
    ranks = patterns(dtype, world_size)
    victim = data.draw(st.integers(0, world_size - 1))
    parts = contributions(ranks, round_number)
    parts[victim] = parts[victim].roll(shift)
    wrong = compare(total(parts), ranks[0].expectation(round_number, ELEMENTS))
    assert wrong is not None
    assert wrong.count > ELEMENTS // 2


@given(dtypes, world_sizes, rounds, st.integers(min_value=1, max_value=60), st.data())
@settings(max_examples=60, deadline=None)
def test_a_contribution_of_an_earlier_round_is_found(
    dtype: str, world_size: int, round_number: int, age: int, data: st.DataObject
) -> None:
    ranks = patterns(dtype, world_size)
    victim = data.draw(st.integers(0, world_size - 1))
    parts = contributions(ranks, round_number + age)
    parts[victim] = ranks[victim].contribution(round_number, ELEMENTS)
    wrong = compare(total(parts), ranks[0].expectation(round_number + age, ELEMENTS))
    assert wrong is not None
    assert wrong.count > ELEMENTS // 2


@given(dtypes, world_sizes, rounds, st.data())
@settings(max_examples=60, deadline=None)
def test_a_single_flipped_bit_is_found_where_it_is(
    dtype: str, world_size: int, round_number: int, data: st.DataObject
) -> None:
    ranks = patterns(dtype, world_size)
    result = total(contributions(ranks, round_number))
    offset = data.draw(st.integers(0, ELEMENTS - 1))
    bit = data.draw(st.integers(0, 8 * result.element_size() - 1))
    mask = 1 << bit
    signed = mask - (1 << 8 * result.element_size()) if dtype != "uint8" and _is_sign(bit, result) else mask
    as_bits(result)[offset] ^= mask if result.element_size() == 1 else signed
    wrong = compare(result, ranks[0].expectation(round_number, ELEMENTS))
    assert wrong is not None
    assert (wrong.count, wrong.first_offset, wrong.last_offset, wrong.run_length) == (1, offset, offset, 1)
    assert wrong.xor_mask == wrong.flipped_bits == mask


def _is_sign(bit: int, tensor: torch.Tensor) -> bool:
    return bit == 8 * tensor.element_size() - 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_wrong_data_beyond_the_first_tile_is_found(dtype: str) -> None:
    elements = 400_000  # the scrambled offsets repeat after 131071 elements, rotated
    ranks = patterns(dtype, 2, elements)
    parts = contributions(ranks, 0, elements)
    expected = ranks[0].expectation(0, elements)
    assert compare(total(parts), expected) is None
    wrong = compare(total([parts[0], parts[1].roll(131_071)]), expected)
    assert wrong is not None
    assert wrong.count > elements // 2


def test_ranks_agree_on_what_is_expected() -> None:
    first, second = patterns("float32", 2)
    assert torch.equal(first.expectation(7, ELEMENTS), second.expectation(7, ELEMENTS))
