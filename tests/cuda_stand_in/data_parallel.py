"""The copies over several GPUs that torch._C makes for DataParallel."""

import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any


def _torch() -> Any:
    return sys.modules["torch"]


def _copied(tensor: Any, device: int) -> Any:
    return tensor.detach().to(_torch().device("cuda", device), copy=True)


def _broadcast_coalesced(tensors: Sequence[Any], devices: Sequence[int], buffer_size: int) -> Any:
    return [list(tensors), *([_copied(tensor, device) for tensor in tensors] for device in devices[1:])]


def _broadcast(tensor: Any, devices: Sequence[int]) -> Any:
    here = tensor.is_cuda and tensor.get_device() == devices[0]
    first = tensor if here else _copied(tensor, devices[0])
    return [first, *(_copied(tensor, device) for device in devices[1:])]


def _broadcast_out(tensor: Any, out: Sequence[Any]) -> Any:
    for one in out:
        one.copy_(tensor)
    return out


def _scatter(
    tensor: Any, devices: Sequence[int], chunk_sizes: Sequence[int] | None, dim: int, streams: Any
) -> Any:
    parts = tensor.chunk(len(devices), dim) if chunk_sizes is None else tensor.split(chunk_sizes, dim)
    return tuple(
        part.to(_torch().device("cuda", device)) for part, device in zip(parts, devices, strict=False)
    )


def _gather(tensors: Sequence[Any], dim: int, destination: int | None) -> Any:
    device = "cpu" if destination == -1 else f"cuda:{destination or 0}"
    return _torch().cat([tensor.to(device) for tensor in tensors], dim)


BINDINGS: Mapping[str, Any] = MappingProxyType(
    {
        "_broadcast_coalesced": _broadcast_coalesced,
        "_broadcast": _broadcast,
        "_broadcast_out": _broadcast_out,
        "_scatter": _scatter,
        "_gather": _gather,
    }
)
