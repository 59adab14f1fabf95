"""How a rank does an injected fault to itself: really, not by saying so."""

import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

_HEADROOM_BYTES = 64 << 20  # what the rank may still allocate before it fails
_BLOCK_BYTES = 8 << 20


def kill_self() -> None:
    """End by SIGKILL, as the OOM killer and batch systems do."""
    os.kill(os.getpid(), signal.SIGKILL)


def stop_self() -> None:
    """Stop by SIGSTOP; somebody must send SIGCONT."""
    os.kill(os.getpid(), signal.SIGSTOP)


def stay_out() -> None:
    """Wait for ever, off the processor, as a rank does that took another branch than the others."""
    while True:
        time.sleep(3600)


def run_out_of_memory() -> None:
    """Allocate until nothing is left, on the GPU if this process uses one, else up to a limit near by.

    Raises:
        MemoryError: always, on a CPU.
        torch.OutOfMemoryError: always, on a GPU.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        _exhaust_gpu(torch)
    _exhaust_host()


def _exhaust_gpu(torch: Any) -> None:
    blocks = []
    while True:
        blocks.append(torch.empty(_BLOCK_BYTES, dtype=torch.uint8, device="cuda"))


def _exhaust_host() -> None:
    """Run into this process's own limit: the machine and its other users keep their memory."""
    used_pages = int(Path("/proc/self/statm").read_text().split()[0])
    limits = resource.getrlimit(resource.RLIMIT_AS)
    allowed = used_pages * resource.getpagesize() + _HEADROOM_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (allowed, limits[1]))
    blocks = []
    try:
        while True:
            blocks.append(bytearray(_BLOCK_BYTES))
    except MemoryError:
        raise MemoryError(
            f"no more memory beyond the {allowed >> 20} MiB that this process may map"
        ) from None
    finally:
        blocks.clear()
        resource.setrlimit(resource.RLIMIT_AS, limits)
