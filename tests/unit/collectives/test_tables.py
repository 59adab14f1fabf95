"""The contributed numbers: every partial sum is exact, and ranks can be told apart."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudiag.collectives.pattern import (
    BIT_LIMITS,
    EXACT_LIMITS,
    WRAPPING,
    bit_patterns,
    largest_prime_below,
    next_prime,
    reduction_table,
    window_sums,
)
from gpudiag.model.plan import DTYPES

WORLD_SIZES = st.integers(min_value=1, max_value=1100)
# A table of a thousand ranks takes a tenth of a second to draw.
large = settings(max_examples=40)


def test_every_dtype_of_the_plan_has_a_range() -> None:
    assert {*EXACT_LIMITS, *WRAPPING} == set(DTYPES)


@given(st.sampled_from(sorted(EXACT_LIMITS)), WORLD_SIZES)
@large
def test_no_partial_sum_leaves_the_exact_range(dtype: str, world_size: int) -> None:
    values = reduction_table("sum", dtype, world_size).values
    most = max(window_sums([max(value, 0) for value in values], world_size))
    least = min(window_sums([min(value, 0) for value in values], world_size))
    assert max(most, -least) <= EXACT_LIMITS[dtype]


@given(st.sampled_from(sorted(WRAPPING)), WORLD_SIZES)
@large
def test_eight_bit_sums_wrap_into_their_range(dtype: str, world_size: int) -> None:
    table = reduction_table("sum", dtype, world_size)
    low, high = WRAPPING[dtype]
    wide = window_sums(table.values, world_size)
    assert all(low <= total <= high for total in (*table.values, *table.reduced))
    assert all((total - found) % 256 == 0 for total, found in zip(wide, table.reduced, strict=True))


@given(st.sampled_from(DTYPES), WORLD_SIZES)
@large
def test_a_window_of_all_ranks_is_not_the_whole_table(dtype: str, world_size: int) -> None:
    table = reduction_table("sum", dtype, world_size)
    assert len(table.values) > 2 * world_size or world_size == 1
    assert len(set(table.reduced)) >= min(8 if dtype.startswith("float8") else 32, len(table.reduced) // 2)


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if not dtype.startswith("float8")])
def test_on_one_machine_every_contribution_differs_and_none_is_zero(dtype: str) -> None:
    for world_size in range(1, 9):
        table = reduction_table("sum", dtype, world_size)
        assert table.distinct
        assert 0 not in table.values
        assert len(set(table.values)) == len(table.values)


def test_the_table_does_not_depend_on_other_random_numbers() -> None:
    first = reduction_table("sum", "float32", 8)
    random.seed(1)
    reduction_table.cache_clear()
    assert reduction_table("sum", "float32", 8) == first


def test_window_sums_go_round_at_the_end() -> None:
    assert window_sums([1, 2, 4], 2) == (3, 6, 5)


@pytest.mark.parametrize(
    ("number", "above", "below"), [(1, 2, 2), (2, 2, 2), (14, 17, 13), (1021, 1021, 1021)]
)
def test_primes(number: int, above: int, below: int) -> None:
    assert next_prime(number) == above
    assert largest_prime_below(number) == below


@given(st.sampled_from(DTYPES), st.integers(min_value=1, max_value=50))
def test_moved_data_has_distinct_bits_of_finite_numbers(dtype: str, world_size: int) -> None:
    bits = bit_patterns(dtype, world_size)
    assert all(0 < pattern < BIT_LIMITS[dtype] for pattern in bits)
    assert len(set(bits)) == len(bits) > world_size


@given(st.sampled_from(["min", "max"]), st.sampled_from(DTYPES), st.integers(min_value=2, max_value=64))
@large
def test_extremes_are_those_of_the_window(reduce: str, dtype: str, world_size: int) -> None:
    table = reduction_table(reduce, dtype, world_size)
    choose = min if reduce == "min" else max
    around = table.values + table.values
    expected = tuple(choose(around[start : start + world_size]) for start in range(len(table.values)))
    assert table.reduced == expected
