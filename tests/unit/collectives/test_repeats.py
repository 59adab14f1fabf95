"""Iterations and warm-ups by the time one operation takes."""

import pytest

from gpudiag.collectives.sweep import MAX_ITERATIONS, MIN_ITERATIONS, choose_repeats


@pytest.mark.parametrize(
    ("operation_seconds", "warmup", "iterations"),
    [
        (0.0, 5, MAX_ITERATIONS),
        (1e-5, 5, MAX_ITERATIONS),
        (0.01, 5, 15),
        (0.2, 1, MIN_ITERATIONS),
        (60.0, 1, 5),
    ],
)
def test_repeats_fit_the_time_within_bounds(operation_seconds: float, warmup: int, iterations: int) -> None:
    repeats = choose_repeats(operation_seconds)
    assert (repeats.warmup, repeats.iterations) == (warmup, iterations)
