from dataclasses import replace
from typing import Any

import pytest
import torch

from gpudiag.model.training import OPTIMIZERS, WORKLOADS
from gpudiag.training.precision import gradient_tolerance, parameter_tolerance
from gpudiag.training.tensors import describe, difference, digest, finite, projection
from gpudiag.training.training_job import TrainingJob


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.uint8])
def test_one_flipped_bit_changes_the_digest(dtype: torch.dtype) -> None:
    tensor = torch.arange(1000).to(dtype)
    for place in (0, 500, 999):
        other = tensor.clone()
        bits = other.view(torch.uint8)
        bits[place * tensor.element_size()] ^= 1
        assert digest(other) != digest(tensor)
    assert digest(tensor.clone()) == digest(tensor)


def test_the_digest_tells_order_length_and_the_sign_of_zero() -> None:
    assert digest(torch.tensor([1.0, 2.0])) != digest(torch.tensor([2.0, 1.0]))
    assert digest(torch.zeros(2)) != digest(torch.zeros(3))
    assert digest(torch.tensor([0.0])) != digest(torch.tensor([-0.0]))


def test_the_digest_sees_the_values_of_a_view() -> None:
    matrix = torch.arange(6.0).view(2, 3)
    assert digest(matrix.t()) == digest(matrix.t().contiguous())


def test_errors_are_relative_to_the_norm_of_all_tensors_or_to_the_floor() -> None:
    expected = {"a": torch.tensor([3.0]), "b": torch.tensor([4.0])}
    found = {"a": torch.tensor([3.5]), "b": torch.tensor([4.0])}
    assert difference(found, expected) == pytest.approx(0.1)
    assert difference(found, expected, floor=50.0) == pytest.approx(0.01)
    assert [fact.error for fact in describe(found, expected)] == pytest.approx([0.1, 0.0])


def test_the_projection_tells_a_multiple() -> None:
    expected = {"a": torch.tensor([1.0, -2.0])}
    assert projection({"a": torch.tensor([2.0, -4.0])}, expected) == pytest.approx(2.0)


def test_what_is_not_finite_is_none() -> None:
    expected = {"a": torch.tensor([1.0])}
    assert difference({"a": torch.tensor([float("nan")])}, expected) is None
    assert finite(float("inf")) is None


def job(**values: Any) -> TrainingJob:
    return replace(
        TrainingJob("ddp", "regression", "gloo", "float32", "sgd", steps=4, batch_size=8, seed=1, workers=2),
        **values,
    )


def test_tolerances_lie_between_rounding_and_faults() -> None:
    single = job()
    assert 1e-6 < gradient_tolerance(single, "cpu") < 1e-4
    assert gradient_tolerance(single, "cuda") > gradient_tolerance(single, "cpu")
    assert parameter_tolerance(job(optimizer="adam"), "cpu") > parameter_tolerance(single, "cpu")


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_in_half_precision_a_tenth_of_one_of_two_ranks_is_more_than_rounding(
    workload: str, optimizer: str, dtype: str
) -> None:
    half = job(workload=workload, optimizer=optimizer, dtype=dtype)
    assert gradient_tolerance(half, "cpu") < 0.1 / 2
    assert parameter_tolerance(half, "cpu") < 1e-6  # of one update, in float32
