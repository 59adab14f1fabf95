"""Arrays of NumPy compared, as tensors.py compares tensors: for a framework beside which there is no torch."""

import hashlib
import math
from collections.abc import Mapping
from typing import Any

from gpudiag.model.training import TensorFact


def facts(
    found: Mapping[str, Any], expected: Mapping[str, Any], floor: float = 0.0
) -> tuple[TensorFact, ...]:
    """Each array's digest, and its error against `expected` over the norm of all of that, or over `floor`."""
    scale = max(norm(expected), floor) or 1.0
    return tuple(
        TensorFact(name, digest(value), finite(norm({name: value - expected[name]}) / scale))
        for name, value in found.items()
    )


def digest(value: Any) -> str:
    """16 hexadecimal digits of the array's bits."""
    return hashlib.sha256(value.tobytes()).hexdigest()[:16]


def norm(values: Mapping[str, Any]) -> float:
    """The L2 norm of all arrays together."""
    return math.sqrt(sum(float((value.astype("float64") ** 2).sum()) for value in values.values()))


def difference(found: Mapping[str, Any], expected: Mapping[str, Any], floor: float = 0.0) -> float | None:
    """The L2 norm of the difference over that of `expected`, or over `floor` if that is larger; None: not finite."""
    size = norm({name: found[name].astype("float64") - expected[name] for name in expected})
    return finite(size / (max(norm(expected), floor) or 1.0))


def projection(found: Mapping[str, Any], expected: Mapping[str, Any]) -> float | None:
    """How many times `expected` is in `found`; None where it is not finite."""
    product = sum(float((found[name].astype("float64") * expected[name]).sum()) for name in expected)
    square = norm(expected) ** 2
    return finite(product / square) if square else None


def finite(number: float) -> float | None:
    """The number, or None if it is infinite or no number."""
    return number if math.isfinite(number) else None
