"""What a wrong step is found to be made of, from the tensors themselves: whole ones, and the rows that one
rank keeps.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gpudiag.model.training import StepParts
from gpudiag.training.gradient_diagnosis import PartsFinder, Tensors

RATE, MOMENTUM, DECAY = 0.05, 0.9, 0.01
SHAPES = {"0.weight": (8, 6), "0.bias": (8,), "1.weight": (3, 8), "1.bias": (3,)}


def random(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def of_rank(rank: int, ranks: int = 2) -> Callable[[Tensors], Tensors]:
    """The rows that a rank keeps; none of a tensor with fewer rows than ranks before it."""

    def part(whole: Tensors) -> Tensors:
        chunks = {name: value.chunk(ranks) for name, value in whole.items()}
        return {name: here[rank] if rank < len(here) else whole[name][:0] for name, here in chunks.items()}

    return part


def moved(at: Tensors, by: Tensors, times: float = 1.0) -> dict[str, torch.Tensor]:
    return {name: at[name] - times * RATE * by[name] for name in at}


def parts_of(
    change: Callable[[Tensors, Tensors, Tensors], Tensors],
    own_part: Callable[[Tensors], Tensors],
    used: float | None = 1.0,
) -> StepParts | None:
    """The parts of a second step in which `change` says what came of parameters and gradients before and now.

    `used` is the factor of the gradients that are there after it; None where none is kept.
    """
    start, earlier, now = random(0), random(1), random(2)
    nobody: Any = None
    finder = PartsFinder(nobody, own_part(start), 1e-5, 1e-5, own_part)
    finder.of_gradient(earlier, earlier, 0.0, start, [])
    first = moved(start, earlier)
    assert finder.of_step(first, first, start, earlier, ()) is None
    finder.of_gradient(now, now, 0.0, first, [])
    speed = {name: MOMENTUM * earlier[name] + now[name] for name in now}
    kept = {} if used is None else {name: used * value for name, value in now.items()}
    return finder.of_step(change(first, earlier, now), moved(first, speed), first, own_part(kept), ())


def stepped(times: float = 1.0, keep: float = 1.0) -> Callable[[Tensors, Tensors, Tensors], Tensors]:
    def change(at: Tensors, earlier: Tensors, now: Tensors) -> Tensors:
        speed = {name: MOMENTUM * earlier[name] + now[name] for name in now}
        return moved({name: keep * at[name] for name in at}, speed, times)

    return change


def only(rank: int, change: Callable[[Tensors, Tensors, Tensors], Tensors]) -> Any:
    """The whole parameters in which one rank's rows are changed."""

    def changed(at: Tensors, earlier: Tensors, now: Tensors) -> Tensors:
        right, wrong = stepped()(at, earlier, now), change(at, earlier, now)
        return {
            name: torch.cat([(wrong if place == rank else right)[name].chunk(2)[place] for place in range(2)])
            for name in at
        }

    return changed


def with_old_gradients(at: Tensors, earlier: Tensors, now: Tensors) -> Tensors:
    return moved(at, {name: MOMENTUM * earlier[name] + earlier[name] for name in now})


def rounded(at: Tensors, earlier: Tensors, now: Tensors) -> Tensors:
    return {name: value.bfloat16().float() for name, value in stepped()(at, earlier, now).items()}


@pytest.mark.parametrize("rank", [0, 1])
def test_only_the_rank_whose_rows_are_wrong_has_parts(rank: int) -> None:
    wrong = only(rank, stepped(times=2.0))
    parts = parts_of(wrong, of_rank(rank))
    assert parts is not None
    assert parts.scale == pytest.approx(2.0, abs=1e-4)
    assert abs(parts.decay) < 1e-5
    assert parts_of(wrong, of_rank(1 - rank)) is None


@pytest.mark.parametrize("own_part", [lambda whole: whole, of_rank(1)], ids=["whole", "rows"])
def test_each_cause_leaves_its_own_trace(own_part: Callable[[Tensors], Tensors]) -> None:
    old = parts_of(with_old_gradients, own_part)
    faster, decayed = parts_of(stepped(times=1.06), own_part), parts_of(stepped(keep=1 - DECAY), own_part)
    short = parts_of(rounded, own_part)
    assert old is not None
    assert faster is not None
    assert decayed is not None
    assert short is not None
    assert (old.rest_of_gradient_before or 0.0) < 1e-4 < 0.1 < (old.rest_without_decay or 0.0)
    assert (faster.scale, faster.rounded_to) == (pytest.approx(1.06, abs=1e-4), None)
    assert decayed.decay == pytest.approx(DECAY, abs=1e-5)
    assert (decayed.rest or 0.0) < 0.01 * (decayed.rest_without_decay or 0.0)
    assert (faster.rest_of_gradient_before or 0.0) > 0.5 * (faster.rest_without_decay or 0.0)
    assert short.rounded_to == "bfloat16"


def without_momentum(at: Tensors, earlier: Tensors, now: Tensors) -> Tensors:
    return moved(at, now)


@pytest.mark.parametrize("own_part", [lambda whole: whole, of_rank(1)], ids=["whole", "rows"])
def test_gradients_of_the_step_and_its_momentum_are_measured(own_part: Callable[[Tensors], Tensors]) -> None:
    clipped = parts_of(stepped(times=0.5), own_part, used=0.7)
    untouched = parts_of(without_momentum, own_part)
    unknown = parts_of(stepped(times=0.5), own_part, used=None)
    assert clipped is not None
    assert untouched is not None
    assert unknown is not None
    assert (clipped.gradient_scale, clipped.gradient_rest) == (
        pytest.approx(0.7, abs=1e-5),
        pytest.approx(0, abs=1e-5),
    )
    assert (untouched.gradient_scale, untouched.gradient_rest) == (
        pytest.approx(1.0),
        pytest.approx(0, abs=1e-6),
    )
    assert (unknown.gradient_scale, unknown.gradient_rest) == (None, None)
    assert untouched.momentum_kept == pytest.approx(0.0, abs=1e-3)
    assert (untouched.momentum_rest or 0.0) < 1e-3 < 0.1 < (untouched.rest or 0.0)
    assert clipped.momentum_kept is None  # another multiple is no matter of momentum


def not_stepped(at: Tensors, earlier: Tensors, now: Tensors) -> Tensors:
    return dict(at)


def test_a_rank_that_keeps_no_row_of_a_tensor_makes_no_step_all_the_same() -> None:
    def last_rows(whole: Tensors) -> Tensors:
        return {name: value[:0] if name == "0.weight" else value for name, value in whole.items()}

    parts = parts_of(not_stepped, last_rows)
    assert parts is not None
    assert (parts.all_unmoved, set(parts.unmoved)) == (True, set(SHAPES) - {"0.weight"})
    moving = parts_of(stepped(times=2.0), last_rows)
    assert moving is not None
    assert not moving.all_unmoved
