"""Which GPU a rank works on, as torch names it; imported inside ranks only."""

import os

import torch

from gpudiag.model.reading import Missing, MissingReason, Reading
from gpudiag.ranks.context import RankContext
from gpudiag.ranks.sharing import SHARING_VARIABLE, Store, require_own_gpu


def claim_device(context: RankContext, backend: str) -> torch.device:
    """The device that this rank works on; a GPU becomes the current one, as NCCL wants it.

    A launcher may show each rank one GPU, which is then number 0 of every rank; and ranks may share
    GPUs where the recipe allowed it.
    """
    if backend != "nccl":
        return torch.device("cpu")
    device = torch.device("cuda", context.local_rank % max(1, torch.cuda.device_count()))
    torch.cuda.set_device(device)
    os.environ["LOCAL_RANK"] = str(device.index)  # what frameworks take for the number of the GPU
    return device


def refuse_shared_device(context: RankContext, store: Store, device: torch.device) -> None:
    """Return where no other rank of this host works on this rank's GPU, or NCCL was told that some do.

    Raises:
        SharedGpuError: another one does.
    """
    uuid = read_device_uuid(device)
    if not isinstance(uuid, Missing) and SHARING_VARIABLE not in os.environ:
        require_own_gpu(store, context.rank, context.local_rank, context.local_world_size, uuid)


def binds_device(device: torch.device) -> bool:
    """Whether to tell torch's process group the device: 2.6.1 to 2.7.0 hang with it (pytorch/pytorch #153960)."""
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:3] if part.isdecimal())
    return device.type == "cuda" and not (2, 6, 0) < version < (2, 7, 1)


def read_device_uuid(device: torch.device) -> Reading[str]:
    """The UUID of the rank's GPU in NVML's spelling, `GPU-...`; missing on the CPU and on old torch."""
    if device.type != "cuda":
        return Missing(MissingReason.NOT_SUPPORTED, "the rank works on the CPU")
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    if uuid is None:
        return Missing(MissingReason.FUNCTION_NOT_FOUND, "this torch does not tell a GPU's UUID")
    return f"GPU-{uuid}"
