"""What a wrong gradient or step is made of, by its tensors: shares of ranks, other steps, a factor, bits."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from gpudiag.model.training import GradientParts, StepParts
from gpudiag.training.reference import MOMENTUM, Reference
from gpudiag.training.tensors import DTensor, difference, finite, norm

# With more ranks, parts are not looked for: each takes a forward and a backward pass.
_RANKS_AT_MOST = 64
# The elements with the largest errors that make up this share of the squared error count as off.
_NEARLY_ALL = 0.999
# Relative to the size of the summands, another order of a sum changes less than this, a flipped bit more.
_FLIP_ERROR = 1e-5
_FLIPS_AT_MOST = 4
_SAME = 1e-3  # a coefficient this near to one is one
_SHORTER = (torch.bfloat16, torch.float16)

Tensors = Mapping[str, torch.Tensor]


@dataclass
class PartsFinder:
    """Finds the parts, and keeps the previous step, which may be one of them."""

    reference: Reference
    before: Tensors  # this rank's parameters before the coming step
    gradient_tolerance: float
    parameter_tolerance: float
    own_part: Callable[[Tensors], Tensors]  # of what is the whole model's
    _expected: Tensors = field(default_factory=dict)  # gradients of this step
    _expected_before: Tensors = field(default_factory=dict)
    _samples: tuple[Tensors, Sequence[torch.Tensor]] | None = None  # at which parameters, of which indices
    _found: Tensors = field(default_factory=dict)
    _movement: Tensors = field(default_factory=dict)

    def of_gradient(
        self, found: Tensors, expected: Tensors, floor: float, at: Tensors, indices: Sequence[torch.Tensor]
    ) -> GradientParts | None:
        """The parts of this step's gradient; None if it is right or not finite, or there are too many ranks.

        `at` are the single process's parameters before the step, `indices` the samples of each rank.
        """
        before, self._expected = self._expected, expected
        self._expected_before = before
        samples_before, self._samples = self._samples, (at, indices)
        found_before, self._found = self._found, found
        scale = max(norm(expected), floor) or 1.0
        names = _off(found, expected, self.gradient_tolerance * scale)
        if not names or len(indices) > _RANKS_AT_MOST:
            return None
        wanted, have = _flat(expected, names), _flat(found, names)
        of_ranks = [_flat(self.reference.gradients_at(at, one), names) for one in indices]
        shares, rest = _fit(have, of_ranks)
        off = _off_most(have - wanted)
        few = len(off) <= min(_FLIPS_AT_MOST, len(wanted) // 2)
        here, right = self.own_part(found), self.own_part(expected)
        own_scale, own_rest = _factor(_flat(here, here), _flat(right, here))
        shares_before: tuple[float, ...] = ()
        rest_with_before = None
        if samples_before is not None and 2 * len(indices) < len(wanted):
            at_before, of_before = samples_before
            earlier = [_flat(self.reference.gradients_at(at_before, one), names) for one in of_before]
            fitted, left = _fit(have, [*of_ranks, *earlier])
            shares_before, rest_with_before = fitted[len(indices) :], finite(left / scale)
        return GradientParts(
            tensors=tuple(names),
            shares=shares,
            rest=finite(rest / scale),
            step_before=_gap(_flat(self.own_part(found), names), self.own_part(before), names, scale),
            accumulated=_gap(have - wanted, found_before, names, scale),
            elements_off=len(off),
            elements=len(wanted),
            rounded_to=rounded_to([found[name] for name in found]),
            flipped_ranks=find_flipped_ranks(have[off], [one[off] for one in of_ranks]) if few else (),
            flipped_average=few and is_flipped(have[off], wanted[off]),
            shares_before=shares_before,
            rest_with_before=rest_with_before,
            own_scale=own_scale,
            own_rest=own_rest,
        )

    def of_step(
        self, found: Tensors, expected: Tensors, at: Tensors, used: Tensors, settings: tuple[str, ...] | None
    ) -> StepParts | None:
        """The parts of this step's movement; None if the parameters that this rank keeps are right.

        `at`: the single process's parameters before the step; `used`: this rank's gradients after it;
        `settings`: those of its optimizer that are not the plan's.
        """
        found, expected, at = self.own_part(found), self.own_part(expected), self.own_part(at)
        start, self.before = self.before, found
        wanted = {name: expected[name].double() - at[name].double() for name in expected}
        movement_before, self._movement = self._movement, wanted
        names = _off(found, expected, self.parameter_tolerance * (norm(expected) or 1.0))
        if not names:
            return None
        moved = {name: found[name].double() - start[name].double() for name in names}
        right, have = _flat(wanted, names), _flat(moved, names)
        (scale, decay), rest = _fit(have, [right, _flat(start, names)])
        _, rest_without_decay = _fit(have, [right])
        size = float(right.norm()) or 1.0
        times, times_rest = self._gradients_of_step(used)
        kept, kept_rest = self._momentum_kept(have, right, movement_before, names, size)
        return StepParts(
            tensors=tuple(names),
            unmoved=tuple(name for name in names if found[name].equal(start[name])),
            scale=scale,
            decay=-decay,
            rest=finite(rest / size),
            step_before=_gap(have, movement_before, names, size),
            elements_off=len(_off_most(_flat(found, names) - _flat(expected, names))),
            elements=len(right),
            rest_without_decay=finite(rest_without_decay / size),
            rest_of_gradient_before=self._rest_of_gradient_before(have - right, names, size),
            rounded_to=rounded_to([found[name] for name in found]),
            settings=settings,
            gradient_scale=times,
            gradient_rest=times_rest,
            momentum_kept=kept,
            momentum_rest=kept_rest,
            all_unmoved=all(found[name].equal(start[name]) for name in found),
        )

    def _gradients_of_step(self, used: Tensors) -> tuple[float | None, float | None]:
        """The step's gradients as a multiple of those after the backward pass, and the rest."""
        after_backward = self.own_part(self._found)
        names = [name for name in used if name in after_backward]
        if not names or any(used[name].shape != after_backward[name].shape for name in names):
            return None, None
        return _factor(_flat(used, names), _flat(after_backward, names))

    def _momentum_kept(
        self, have: torch.Tensor, right: torch.Tensor, before: Tensors, names: Sequence[str], size: float
    ) -> tuple[float | None, float | None]:
        """How much of SGD's momentum is in a movement, 1 where it is right, and the rest."""
        if any(name not in before for name in names):
            return None, None
        (scale, more), rest = _fit(have, [right, _flat(before, names)])
        return (1 + more / MOMENTUM if abs(scale - 1) < _SAME else None), finite(rest / size)

    def _rest_of_gradient_before(
        self, error: torch.Tensor, names: Sequence[str], size: float
    ) -> float | None:
        """What is left of a movement's error with the step before's gradients; None without."""
        if any(name not in self._expected_before for name in names):
            return None
        now, before = self.own_part(self._expected), self.own_part(self._expected_before)
        _, rest = _fit(error, [_flat(before, names) - _flat(now, names)])
        return finite(rest / size)


def changed_parts(
    inputs: torch.Tensor, targets: torch.Tensor, right: tuple[torch.Tensor, torch.Tensor]
) -> tuple[str, ...]:
    """Which of a batch's inputs and targets differ from the data set; not those with NaN or infinity."""
    pairs = (("inputs", inputs, right[0]), ("targets", targets, right[1]))
    return tuple(
        name
        for name, found, expected in pairs
        if not found.equal(expected) and bool(torch.isfinite(found).all())
    )


def _off(found: Tensors, expected: Tensors, limit: float) -> list[str]:
    """The names of the tensors that are off; all of them if only their total error is over `limit`."""
    error = difference(found, expected)
    gaps = {name: float((found[name].double() - expected[name].double()).norm()) for name in found}
    whole = norm({name: found[name].double() - expected[name].double() for name in found})
    if error is None or whole <= limit or found.keys() != expected.keys():
        return []
    return [name for name, gap in gaps.items() if gap > limit] or list(found)


def _flat(tensors: Tensors, names: Iterable[str]) -> torch.Tensor:
    return torch.cat([tensors[name].detach().double().flatten().cpu() for name in names])


def _fit(found: torch.Tensor, parts: Sequence[torch.Tensor]) -> tuple[tuple[float, ...], float]:
    """The least-squares coefficient of each part in `found`, and the norm of the residual."""
    columns = torch.stack(list(parts), dim=1)
    shares = torch.linalg.lstsq(columns, found.unsqueeze(1)).solution.squeeze(1)
    return tuple(float(share) for share in shares), float((found - columns @ shares).norm())


def _factor(found: torch.Tensor, expected: torch.Tensor) -> tuple[float | None, float | None]:
    """How many times `expected` is in `found`, and what remains by the size of `expected`; None if empty."""
    size = float(expected.norm()) if len(expected) else 0.0
    if size == 0.0:
        return None, None
    (scale,), rest = _fit(found, [expected])
    return finite(scale), finite(rest / size)


def _gap(found: torch.Tensor, expected: Tensors, names: Sequence[str], scale: float) -> float | None:
    """The error against another step's tensors, over `scale`; None if there is no such step."""
    if any(name not in expected for name in names):
        return None
    return finite(float((found - _flat(expected, names)).norm()) / scale)


def _off_most(error: torch.Tensor) -> torch.Tensor:
    """The indices of the elements that make up nearly all of an error."""
    squares = error.square().sort(descending=True)
    sums = squares.values.cumsum(0)
    return squares.indices[: int((sums < _NEARLY_ALL * sums[-1]).sum()) + 1]


def find_flipped_ranks(found: torch.Tensor, of_ranks: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """The ranks where one flipped bit in each of these elements of their gradient explains the average.

    Some frameworks divide by the number of ranks before the sum, and some after it.
    """
    ranks = len(of_ranks)
    parts = torch.stack([own / ranks for own in of_ranks])
    limit = _FLIP_ERROR * (found.abs() + parts.abs().sum(0))
    handed_in = [found - (parts.sum(0) - part) for part in parts]
    return tuple(
        rank
        for rank, part in enumerate(parts)
        if _is_flip(handed_in[rank], part, limit)
        or _is_flip(ranks * handed_in[rank], ranks * part, ranks * limit)
    )


def is_flipped(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Whether one flipped bit in each element of `wanted` explains `found`."""
    return _is_flip(found, wanted, _FLIP_ERROR * (found.abs() + wanted.abs()))


def _is_flip(found: torch.Tensor, right: torch.Tensor, limit: torch.Tensor) -> bool:
    bits = right.float().view(torch.int32).unsqueeze(1)
    masks = torch.tensor([1 << bit for bit in range(31)] + [-(1 << 31)], dtype=torch.int32)
    flipped = (bits ^ masks).view(torch.float32).double()
    return bool(((flipped - found.unsqueeze(1)).abs() <= limit.unsqueeze(1)).any(1).all())


def rounded_to(found: Sequence[torch.Tensor]) -> str | None:
    """The name of a 16-bit dtype that holds all these numbers exactly; None if neither does."""
    for dtype in _SHORTER:
        if all(tensor.to(dtype).to(tensor.dtype).equal(tensor) for tensor in found):
            return str(dtype).removeprefix("torch.")
    return None


class OwnGradients:
    """Each parameter's gradient from autograd in this rank's last backward pass, before averaging."""

    def __init__(self, model: nn.Module) -> None:
        """Hook the model's parameters; torch runs these hooks before those that average.

        Where they are sharded, the tensors that autograd sees exist only from a layer's call on.
        """
        self._kept: dict[str, torch.Tensor] = {}
        self._of_tensors: dict[str, Any] = {}
        self._of_layers = [
            layer.register_forward_pre_hook(self._watch(name))
            for name, layer in model.named_modules()
            if any(True for _ in layer.parameters(recurse=False))
        ]

    def take(self, scale: float) -> dict[str, torch.Tensor]:
        """The gradients since the last call, over the loss scale, by name."""
        kept, self._kept = self._kept, {}
        return {name: gradient / scale for name, gradient in kept.items()}

    def stop(self) -> None:
        """Remove the hooks."""
        for hook in (*self._of_layers, *self._of_tensors.values()):
            hook.remove()

    def _watch(self, layer_name: str) -> Callable[[nn.Module, Any], None]:
        def watch(layer: nn.Module, _: Any) -> None:
            for short, parameter in layer.named_parameters(prefix=layer_name, recurse=False):
                if short in self._of_tensors:
                    self._of_tensors.pop(short).remove()
                if torch.is_grad_enabled() and parameter.requires_grad and not isinstance(parameter, DTensor):
                    self._of_tensors[short] = parameter.register_hook(  # type: ignore[no-untyped-call]
                        partial(self._keep, short)
                    )

        return watch

    def _keep(self, name: str, gradient: torch.Tensor) -> None:
        self._kept[name] = gradient.detach().clone()
