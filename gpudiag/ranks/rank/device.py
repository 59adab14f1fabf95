"""Which GPU a rank works on, as torch names it; imported inside ranks only."""

import os
from typing import Any, Protocol

import torch

from gpudiag.model.reading import Missing, MissingReason, Reading
from gpudiag.ranks.rank.context import RankContext

# Lets NCCL 2.30 and later run several ranks on one GPU (its documentation, "Environment Variables").
SHARING_VARIABLE = "NCCL_MULTI_RANK_GPU_ENABLE"
_KEY = "gpudiag/gpu"


class Store(Protocol):
    """The key-value store that the ranks of a run share, as torch's stores are."""

    def set(self, key: str, value: str) -> Any:
        """Set a value for all ranks to read."""

    def get(self, key: str) -> bytes:
        """The value, after waiting until a rank has set it."""


class SharedGpuError(RuntimeError):
    """Two ranks would work on one GPU, which NCCL refuses with a message that names neither."""


def require_own_gpu(store: Store, rank: int, local_rank: int, local_world_size: int, uuid: str) -> None:
    """Return once every rank of this host has published its GPU, and this one's is no other's.

    Raises:
        SharedGpuError: another rank has this GPU; the message names it.
    """
    store.set(f"{_KEY}/{rank}", uuid)
    first = rank - local_rank
    for other in range(first, first + local_world_size):
        if other != rank and store.get(f"{_KEY}/{other}").decode() == uuid:
            raise SharedGpuError(
                f"ranks {min(rank, other)} and {max(rank, other)} both use {uuid}: give each rank its own"
                f" GPU (CUDA_VISIBLE_DEVICES; NCCL 2.30 shares one with {SHARING_VARIABLE}=1)"
            )


def claim_device(context: RankContext, backend: str) -> torch.device:
    """The device that this rank works on, made current as NCCL requires; one shown alone has index 0."""
    if backend != "nccl":
        return torch.device("cpu")
    device = torch.device("cuda", context.local_rank % max(1, torch.cuda.device_count()))
    torch.cuda.set_device(device)
    os.environ["LOCAL_RANK"] = str(device.index)  # what frameworks take as the index of the GPU
    return device


def refuse_shared_device(context: RankContext, store: Store, device: torch.device) -> None:
    """Return if no other rank here works on this GPU, or NCCL may. Raises SharedGpuError: one does."""
    uuid = read_device_uuid(device)
    if not isinstance(uuid, Missing) and SHARING_VARIABLE not in os.environ:
        require_own_gpu(store, context.rank, context.local_rank, context.local_world_size, uuid)


def binds_device(device: torch.device) -> bool:
    """Whether to pass the device to torch's process group: 2.6.1 to 2.7.0 hang then (pytorch #153960)."""
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:3] if part.isdecimal())
    return device.type == "cuda" and not (2, 6, 0) < version < (2, 7, 1)


def read_device_uuid(device: torch.device) -> Reading[str]:
    """The UUID of the rank's GPU in NVML's format, `GPU-...`; missing on the CPU and on old torch."""
    if device.type != "cuda":
        return Missing(MissingReason.NOT_SUPPORTED, "the rank works on the CPU")
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    if uuid is None:
        return Missing(MissingReason.FUNCTION_NOT_FOUND, "this torch does not report a GPU's UUID")
    return f"GPU-{uuid}"
