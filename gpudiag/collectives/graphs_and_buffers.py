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

    Registered memory is of ncclMemAlloc, in a pool that is registered with the communicator (torch 2.7, NCCL
    2.19); symmetric memory is registered as a window, which all ranks map alike (torch 2.9, NCCL 2.27).
    """
    if kind == PLAIN:
        return _plain(size_bytes, device), NOT_ASKED
    try:
        return _registered(kind, size_bytes, device), kind
    except (AttributeError, TypeError, NotImplementedError, ImportError) as error:
        why = Missing(MissingReason.NOT_SUPPORTED, f"torch {torch.__version__}: {_first_line(error)}")
    except RuntimeError as error:
        if _is_fault(error):
            raise
        why = Missing(MissingReason.ERROR, _first_line(error))
    return _plain(size_bytes, device), why  # once what could not be registered is freed


def _registered(kind: str, size_bytes: int, device: torch.device) -> torch.Tensor:
    """Memory of a pool that the communicator knows; that is there once any collective has run."""
    group: Any = dist.group.WORLD
    backend = group._get_backend(device)
    pool = torch.cuda.MemPool(backend.mem_allocator)
    with torch.cuda.use_mem_pool(pool):
        memory = _plain(size_bytes, device)
    if kind == SYMMETRIC:
        backend.register_mem_pool(pool, symm=True)
    else:
        backend.register_mem_pool(pool)
    _kept.append(pool)  # its memory is gone with it
    return memory


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
            if _is_fault(error):
                raise
            self.used = Missing(MissingReason.NOT_SUPPORTED, _first_line(error))
            return call
        self.used = True
        return replay


def _capture(call: Call) -> Callable[[], None]:
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    try:
        with torch.cuda.graph(graph):
            call()
    finally:  # a capture that fails ends on torch's stream for captures
        torch.cuda.set_stream(stream)
    return graph.replay


# cudaError_t: not permitted, not supported, and those of a capture (cudaErrorStreamCaptureUnsupported and
# what follows it).
_REFUSED_CODES = frozenset((800, 801, *range(900, 909)))


def _is_fault(error: BaseException) -> bool:
    """Whether the device failed, and not the way: that is the run's.

    CUDA's refusal of a capture is an AcceleratorError, too.
    """
    if isinstance(error, torch.OutOfMemoryError):
        return True
    if not hasattr(torch, "AcceleratorError") or not isinstance(error, torch.AcceleratorError):
        return False
    code = getattr(error, "error_code", None)  # torch 2.9
    return code not in _REFUSED_CODES if code is not None else "captur" not in str(error)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
