"""Iterations and warm-ups by the time one operation takes."""

from collections.abc import Callable

import pytest

from gpudiag.collectives.sweep import (
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    SERIES_SECONDS,
    choose_repeats,
    count_left_out,
)


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


def measured(seconds_of: Callable[[int], float], largest: int = 1 << 26) -> tuple[list[int], float]:
    """The sizes that are measured where an operation takes so long, and how long all of it takes."""
    sizes = [1 << bit for bit in range(3, largest.bit_length())]
    spent, chosen = 0.0, list[int]()
    while sizes:
        size = sizes.pop(0)
        chosen.append(size)
        repeats = choose_repeats(seconds_of(size), in_bounds=True)
        spent += seconds_of(size) * (1 + repeats.warmup)  # warmed up, and about to be timed
        timed = seconds_of(size) * (repeats.iterations + 1)
        left_out = (
            count_left_out(sizes, size, seconds_of(size), SERIES_SECONDS - spent - timed) if sizes else 0
        )
        sizes = sizes[left_out:]
        spent += timed
    return chosen, spent


def test_on_a_fast_network_all_sizes_are_measured() -> None:
    chosen, spent = measured(lambda size: 1e-4 + size / 1e9)
    assert len(chosen) == 24
    assert spent < SERIES_SECONDS


@pytest.mark.parametrize("megabits", [1000, 100, 50, 20, 5])
@pytest.mark.parametrize("delay_seconds", [0.001, 0.1, 0.5])
def test_on_a_slow_network_fewer_are_and_the_time_is_bounded(megabits: int, delay_seconds: float) -> None:
    """A ring of eight: each byte goes 14 times over an eighth of the links."""
    chosen, spent = measured(lambda size: delay_seconds + 1.75 * size * 8 / (megabits * 1e6))
    assert spent < 1.5 * SERIES_SECONDS
    assert len(chosen) >= 2
    assert chosen == sorted(chosen)
    assert chosen[-1] >= 1024


def test_nothing_further_is_measured_once_the_time_is_over() -> None:
    assert count_left_out([16, 32, 64], 8, 3.0, 0.0) == 3
