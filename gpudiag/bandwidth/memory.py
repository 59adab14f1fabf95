"""How much free memory each active test needs, and what a rank reports instead where there is less.

A test with too little memory, or data that fit a cache, shows nothing of the GPU: it is not tested, which is
no fault.
"""

import re
from collections.abc import Callable

import torch

from gpudiag.bandwidth.bench import Bench
from gpudiag.model.active import NotTested
from gpudiag.reference.speeds import least_size
from gpudiag.units import GIB, MIB, format_size

# cuBLAS takes 32 MiB on Hopper (PyTorch's notes on CUDA semantics, CUBLAS_WORKSPACE_CONFIG), and torch's
# allocator takes memory in blocks of up to 20 MiB (its kLargeBuffer).
WORKSPACE_BYTES = 64 * MIB

# Of CUDA, of cuBLAS, and of torch's allocator.
_NO_MEMORY = re.compile(r"out of memory|CUBLAS_STATUS_ALLOC_FAILED", re.IGNORECASE)


class TooLittleMemoryError(Exception):
    """A test needs more memory than is free; the message names the memory, the amount and the reason."""

    def __init__(self, why: str, needed_bytes: int, free_bytes: int) -> None:
        """`why`: what the memory is for; it follows the numbers in the message."""
        super().__init__(
            f"{format_size(free_bytes)} of memory are free, and it needs {format_size(needed_bytes)}{why}"
        )
        self.needed_bytes = needed_bytes
        self.free_bytes = free_bytes


class NotOfferedError(TooLittleMemoryError):
    """This torch, or this device, does not have what a test is made of; the message has torch's words."""

    def __init__(self, words: str) -> None:
        """No memory would help."""
        super().__init__("", 0, 0)
        self.args = (words,)


def free_bytes(device: torch.device) -> int:
    """Bytes that are free on that GPU, those that torch keeps for later included."""
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(device)
    return int(free)


def require_free(bench: Bench, needed_bytes: int, why: str = "", device: torch.device | None = None) -> None:
    """Return if the rank's GPU, or `device`, has so much free memory. Raises TooLittleMemoryError: not so."""
    if bench.is_cuda and (free := free_bytes(device or bench.device)) < needed_bytes:
        raise TooLittleMemoryError(why, needed_bytes, free)


def buffer_bytes(bench: Bench, wanted_bytes: int, buffers: int, *, beyond_cache: bool) -> int:
    """Bytes for each of that many buffers: as many as are wanted, or fewer where a GPU has less free.

    Raises:
        TooLittleMemoryError: even the least size, for which the limit of the speed holds, does not fit.
    """
    if not bench.is_cuda:
        return wanted_bytes
    least = min(wanted_bytes, max(MIB, beyond_cache_bytes(bench) if beyond_cache else 0))
    free = free_bytes(bench.device)
    fitting = (free - WORKSPACE_BYTES) // buffers // MIB * MIB
    if fitting < least:
        behind = f" ({buffers} buffers beyond its cache)" if beyond_cache else f" ({buffers} buffers)"
        raise TooLittleMemoryError(behind, least * buffers + WORKSPACE_BYTES, free)
    return min(wanted_bytes, fitting)


def beyond_cache_bytes(bench: Bench) -> int:
    """Bytes of which a GPU's cache holds only a small part."""
    cache = int(getattr(torch.cuda.get_device_properties(bench.device), "L2_cache_size", 0))
    return least_size().cache_times * cache


def require_long_enough(bench: Bench, call_seconds: float, size_bytes: int, wanted_bytes: int) -> None:
    """Return if one call on fewer bytes than are wanted took long enough for its start not to count.

    Raises:
        TooLittleMemoryError: it did not; a larger size, for which there is no memory, would.
    """
    least = least_size().call_seconds
    if bench.is_cuda and size_bytes < wanted_bytes and call_seconds < least:
        needed = min(wanted_bytes, int(size_bytes * least / max(call_seconds, 1e-9)))
        why = f" for each buffer: {format_size(size_bytes)} take so short that the start of each copy counts"
        raise TooLittleMemoryError(why, needed, size_bytes)


def attempt(bench: Bench, test: str, call: Callable[[], None], device: torch.device | None = None) -> None:
    """Run `call`; where memory runs out, emit that the test was left out, and why.

    All else that `call` raises is raised, also a lack of memory with more than 4 GiB free.
    """
    try:
        return call()
    except TooLittleMemoryError as error:
        left_out = error
    except RuntimeError as error:
        if not bench.is_cuda or not _NO_MEMORY.search(str(error)):
            raise
        left_out = TooLittleMemoryError("", 4 * GIB, free_bytes(device or bench.device))
        if left_out.free_bytes >= left_out.needed_bytes:
            raise
        left_out.args = (f"memory ran out in it, {format_size(left_out.free_bytes)} are free now",)
    emit_not_tested(bench, test, left_out)


def emit_not_tested(bench: Bench, test: str, left_out: TooLittleMemoryError) -> None:
    """Emit that this rank leaves out the test, and give back what it had for it."""
    result = NotTested(
        test=test,
        rank=bench.rank,
        device_uuid=bench.device_uuid,
        reason=str(left_out),
        needed_bytes=left_out.needed_bytes,
        free_bytes=left_out.free_bytes,
    )
    bench.emit("not_tested", result)
    if bench.is_cuda:
        torch.cuda.empty_cache()
