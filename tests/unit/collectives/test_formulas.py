"""The definitions of nccl-tests: sizes, bus factors, bandwidths."""

import pytest

from gpudiag.collectives.formulas import (
    ACCOUNTING,
    DTYPE_SIZES_BYTES,
    ONE_RANK,
    algbw_bytes_per_second,
    busbw_bytes_per_second,
    elements_for,
)
from gpudiag.model.plan import DTYPES, OPERATIONS


def test_every_operation_and_dtype_of_the_plan_has_its_definition() -> None:
    assert set(ACCOUNTING) == set(OPERATIONS)
    assert set(DTYPE_SIZES_BYTES) == set(DTYPES)


@pytest.mark.parametrize(("world_size", "factor"), [(2, 1.0), (4, 1.5), (8, 1.75)])
def test_all_reduce_moves_twice_n_minus_one_over_n(world_size: int, factor: float) -> None:
    assert busbw_bytes_per_second("all_reduce", 1e9, world_size) == pytest.approx(factor * 1e9)


def test_algorithm_bandwidth_is_size_over_time() -> None:
    assert algbw_bytes_per_second(16 * 1024**2, 0.0397) == pytest.approx(0.4226e9, rel=1e-3)


def test_one_rank_uses_no_bus() -> None:
    assert busbw_bytes_per_second("all_reduce", 1e9, 1) is ONE_RANK


@pytest.mark.parametrize(
    ("dtype", "size_bytes", "elements"),
    [("float32", 8, 2), ("float64", 8, 1), ("int8", 7, 7), ("float32", 7, 1), ("float64", 1, 1)],
)
def test_a_size_holds_whole_elements_and_at_least_one(dtype: str, size_bytes: int, elements: int) -> None:
    assert elements_for("all_reduce", dtype, size_bytes, world_size=4) == elements
