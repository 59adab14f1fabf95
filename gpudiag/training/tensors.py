"""Compare tensors: bit for bit by a digest, and by the size of their difference."""

import math
from collections.abc import Mapping

import torch

from gpudiag.model.training import TensorFact

# An odd multiplier that spreads the bits of an index (Knuth, MMIX), as a signed 64-bit number.
_MULTIPLIER = 6364136223846793005
_INCREMENT = 1442695040888963407
_VIEWS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Tensors = Mapping[str, torch.Tensor]


def digest(tensor: torch.Tensor) -> str:
    """16 hexadecimal digits made from the tensor's bits: any single flipped bit changes them.

    The sum of each element's bits times an odd number that depends on its position, modulo 2**64,
    computed on the tensor's device.
    """
    bits = tensor.detach().contiguous().view(_VIEWS[tensor.element_size()]).flatten().to(torch.int64)
    places = torch.arange(1, len(bits) + 1, dtype=torch.int64, device=bits.device)
    weights = (places * _MULTIPLIER + _INCREMENT) | 1
    return f"{int(((bits + 1) * weights).sum().item()) & (2**64 - 1):016x}"


def row_digests(tensor: torch.Tensor) -> list[int]:
    """A number for each row along the first axis, which tells rows apart as `digest` does tensors."""
    rows = tensor.detach().contiguous().view(len(tensor), -1)
    bits = rows.view(_VIEWS[rows.element_size()]).to(torch.int64)
    places = torch.arange(1, bits.shape[1] + 1, dtype=torch.int64, device=bits.device)
    weights = (places * _MULTIPLIER + _INCREMENT) | 1
    return [int(number) for number in ((bits + 1) * weights).sum(1).tolist()]


def norm(tensors: Tensors) -> float:
    """The L2 norm of all tensors together."""
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in tensors.values()))


def difference(found: Tensors, expected: Tensors, floor: float = 0.0) -> float | None:
    """The L2 norm of the difference over that of `expected`, or over a larger `floor`; None if not finite."""
    scale = max(norm(expected), floor)
    size = norm({name: found[name].double() - expected[name].double() for name in expected if name in found})
    return finite(size / scale if scale else size)


def projection(found: Tensors, expected: Tensors) -> float | None:
    """How many times `expected` is in `found`, by projection: 1 if they are equal; None if not finite."""
    product = sum(float((found[name].double() * expected[name].double()).sum()) for name in expected)
    square = norm(expected) ** 2
    return finite(product / square) if square else None


def describe(found: Tensors, expected: Tensors | None = None, floor: float = 0.0) -> tuple[TensorFact, ...]:
    """Each tensor's digest, and its error over the norm of all of `expected`, or over a larger `floor`."""
    scale = max(norm(expected), floor) if expected else 0.0
    return tuple(
        TensorFact(
            name,
            digest(tensor),
            None
            if expected is None or name not in expected
            else finite(float((tensor.double() - expected[name].double()).norm()) / (scale or 1.0)),
        )
        for name, tensor in found.items()
    )


def finite(number: float) -> float | None:
    """The number, or None if it is infinite or NaN."""
    return number if math.isfinite(number) else None
