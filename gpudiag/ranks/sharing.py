"""Whether two ranks of a host work on one GPU, told by its UUID: numbers say nothing where each rank is shown one."""

from typing import Any, Protocol

# What lets NCCL 2.30 and later have several ranks on a GPU (its documentation, "Environment Variables").
SHARING_VARIABLE = "NCCL_MULTI_RANK_GPU_ENABLE"
_KEY = "gpudiag/gpu"


class Store(Protocol):
    """What the ranks of a run read and write together, as torch's stores do."""

    def set(self, key: str, value: str) -> Any:
        """Write a value for all ranks."""

    def get(self, key: str) -> bytes:
        """The value, once a rank has written it."""


class SharedGpuError(RuntimeError):
    """Two ranks would work on one GPU, which NCCL refuses with words that name neither."""


def require_own_gpu(store: Store, rank: int, local_rank: int, local_world_size: int, uuid: str) -> None:
    """Return once every rank of this host has told its GPU, and no other has this one.

    Ranks of a host are numbered one after the other, as launchers do.

    Raises:
        SharedGpuError: another one has, with its rank.
    """
    store.set(f"{_KEY}/{rank}", uuid)
    first = rank - local_rank
    for other in range(first, first + local_world_size):
        if other != rank and store.get(f"{_KEY}/{other}").decode() == uuid:
            raise SharedGpuError(
                f"ranks {min(rank, other)} and {max(rank, other)} both work on {uuid}: give each rank a GPU of "
                f"its own (CUDA_VISIBLE_DEVICES; NCCL 2.30 shares one with {SHARING_VARIABLE}=1)"
            )
