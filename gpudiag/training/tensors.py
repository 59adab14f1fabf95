"""Compare tensors, bit for bit and by the size of their difference; and what a checkpoint must restore."""

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch

try:
    from torch.distributed.tensor import DTensor as DTensor
except ImportError:  # torch 2.4, where it was not public yet
    from torch.distributed._tensor import DTensor as DTensor  # type: ignore[attr-defined]

from gpudiag.model.training import TensorFact

# --- compare

# An odd multiplier that spreads the bits of an index (Knuth, MMIX), as a signed 64-bit number.
_MULTIPLIER = 6364136223846793005
_INCREMENT = 1442695040888963407
_VIEWS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Tensors = Mapping[str, torch.Tensor]


def digest(tensor: torch.Tensor) -> str:
    """16 hexadecimal digits of the tensor's bits, which any flipped bit changes.

    The sum of each element's bits times an odd number of its position, modulo 2**64, on the device.
    """
    bits = tensor.detach().contiguous().view(_VIEWS[tensor.element_size()]).flatten().to(torch.int64)
    places = torch.arange(1, len(bits) + 1, dtype=torch.int64, device=bits.device)
    weights = (places * _MULTIPLIER + _INCREMENT) | 1
    return f"{int(((bits + 1) * weights).sum().item()) & (2**64 - 1):016x}"


def row_digests(tensor: torch.Tensor) -> list[int]:
    """A number for each row along the first axis, which distinguishes rows as `digest` does."""
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
    product = sum(
        float((found[name].double() * expected[name].double()).sum()) for name in expected if name in found
    )
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


# --- what a checkpoint must restore

Digests = dict[str, str]


def digest_values(prefix: str, values: Mapping[str, Any]) -> Digests:
    """Each value's digest by name: of a tensor's bits on this rank; for anything else, its JSON."""
    return {f"{prefix}.{name}": _digest(value) for name, value in values.items()}


def digest_optimizer(optimizer: Any, names: Mapping[int, str]) -> Digests:
    """The state and the hyperparameters of an optimizer; `names` are those of its parameters, by id."""
    found: Digests = {}
    for number, group in enumerate(optimizer.param_groups):
        settings = {name: value for name, value in group.items() if name != "params"}
        found |= digest_values(f"optimizer.group{number}", settings)
        for place, parameter in enumerate(group["params"]):
            name = names.get(id(parameter), f"group{number}.{place}")
            found |= digest_values(f"optimizer.{name}", optimizer.state.get(parameter, {}))
    return found


def differing_names(written: Digests, found: Digests) -> tuple[str, ...]:
    """The names of what came back with other bits, did not come back, or was not there before."""
    return tuple(sorted(name for name in written | found if written.get(name) != found.get(name)))


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds of a tensor: its shard, or all of it."""
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def names_by_id(named: Iterable[tuple[str, torch.Tensor]]) -> dict[int, str]:
    """The names of parameters by their `id`."""
    return {id(parameter): name for name, parameter in named}


def _digest(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return digest(local_part(value))
    return json.dumps(value, default=repr)  # a tuple that comes back as a list is the same setting
