"""What a checkpoint must restore, as digests by name: tensors, hyperparameters, loss scaler, script state."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from gpudiag.training.tensors import digest

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
