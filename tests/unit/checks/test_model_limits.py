"""Limits by processors and by data sheet."""

import pytest

from gpudiag.checks.model_limits import data_sheet_matrix_limit, data_sheet_memory_limit, matrix_limit
from tests.unit.model.nouns import make_device

H100 = make_device(
    name="NVIDIA H100 80GB HBM3", cuda_cores=16896, compute_capability="9.0", sm_clock_max_mhz=1980
)


def test_matrix_products_are_derived_from_processors_and_clock():
    limit = matrix_limit(H100, "bfloat16")
    assert limit is not None
    assert limit.value == pytest.approx(0.65 * 132 * 1980e6 * 4096)
    float8 = matrix_limit(H100, "float8")
    assert float8 is not None
    assert float8.value == pytest.approx(2 * limit.value)


def test_the_data_sheet_stands_beside_it():
    matrix, memory = data_sheet_matrix_limit(H100, "bfloat16"), data_sheet_memory_limit(H100)
    assert matrix is not None
    assert memory is not None
    assert (matrix.value, memory.value) == (pytest.approx(0.65 * 989e12), pytest.approx(0.80 * 3350e9))
    assert "data sheet" in matrix.source


def test_a_product_that_no_table_has_is_judged_by_its_own_readings_alone():
    unknown = make_device(
        name="NVIDIA X900", cuda_cores=16896, compute_capability="9.0", sm_clock_max_mhz=1980
    )
    assert matrix_limit(unknown, "float16") is not None
    assert data_sheet_memory_limit(unknown) is None
    assert data_sheet_matrix_limit(unknown, "float16") is None


@pytest.mark.parametrize("dtype", ["int4", "float64"])
def test_types_without_a_known_rate_have_no_derived_limit(dtype: str):
    assert matrix_limit(H100, dtype) is None


def test_a_consumer_card_is_held_against_its_data_sheet_only():
    card = make_device(
        name="NVIDIA GeForce RTX 4090", cuda_cores=16384, compute_capability="8.9", sm_clock_max_mhz=3105
    )
    assert matrix_limit(card, "bfloat16") is None
    assert data_sheet_matrix_limit(card, "bfloat16") is not None
