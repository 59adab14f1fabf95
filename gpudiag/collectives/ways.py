"""Ways to run the same operation: from a CUDA graph, and on buffers that NCCL knows beforehand.

Where a device or its torch has none of them, the operation runs as usual, and the reason is reported.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from gpudiag.collectives.operations import Call
from gpudiag.model.plan import PLAIN, SYMMETRIC
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason, Reading


def allocate(kind: str, size_bytes: int, device: torch.device) -> tuple[torch.Tensor, Reading[str]]:
    """Memory for all buffers, and its kind: plain, registered or symmetric; or why it is plain.

    Registered memory is of ncclMemAlloc, in a pool that is registered with the communicator (torch 2.7, NCCL 2.19);
    symmetric memory is registered as a window, which all ranks map alike (torch 2.9, NCCL 2.27).
    """
    if kind == PLAIN:
        return _plain(size_bytes, device), NOT_ASKED
    try:
        group: Any = dist.group.WORLD
        backend = group._get_backend(device)
        pool = torch.cuda.MemPool(backend.mem_allocator)
        with torch.cuda.use_mem_pool(pool):
            memory = _plain(size_bytes, device)
        if kind == SYMMETRIC:
            backend.register_mem_pool(pool, symm=True)
        else:
            backend.register_mem_pool(pool)
    except (AttributeError, TypeError, NotImplementedError, ImportError) as error:
        why = Missing(MissingReason.NOT_SUPPORTED, f"torch {torch.__version__}: {_first_line(error)}")
        return _plain(size_bytes, device), why
    except RuntimeError as error:
        if isinstance(error, _FAULTS):
            raise
        return _plain(size_bytes, device), Missing(MissingReason.ERROR, _first_line(error))
    _kept.append(pool)  # its memory is gone with it
    return memory, kind


_kept: list[Any] = []


def _plain(size_bytes: int, device: torch.device) -> torch.Tensor:
    return torch.empty(size_bytes, dtype=torch.uint8, device=device)


class Graphs:
    """Captures operations as CUDA graphs, until one cannot be."""

    def __init__(self) -> None:
        """Begin with nothing captured."""
        self.used: Reading[bool] = NOT_ASKED

    def capture(self, call: Call) -> Call:
        """What replays the call from a graph of its own; the call itself where it cannot be captured."""
        if isinstance(self.used, Missing) and self.used != NOT_ASKED:
            return call
        try:
            replay = _capture(call)
        except (RuntimeError, TypeError, AttributeError) as error:  # the last two: of a torch without them
            if isinstance(error, _FAULTS):
                raise
            self.used = Missing(MissingReason.NOT_SUPPORTED, _first_line(error))
            return call
        self.used = True
        return replay


def _capture(call: Call) -> Callable[[], None]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


# Of the device, not of the way: these are the run's.
_FAULTS: tuple[type[BaseException], ...] = (
    torch.OutOfMemoryError,
    *((torch.AcceleratorError,) if hasattr(torch, "AcceleratorError") else ()),
)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
