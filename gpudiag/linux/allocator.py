"""The C library's allocator, in processes that live for months: little memory, and freed memory given back.

By default glibc has up to 8 heaps for each processor, and keeps more free memory the more was asked for
(mallopt(3)).
"""

import ctypes
from contextlib import suppress

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # malloc.h
# A message of the sampler is larger: it gets pages of its own, which go back to the kernel.
_LARGE_BYTES = 64 * 1024


def keep_little_memory() -> None:
    """Have threads that start from now on share one heap, and free memory returned, if the C library can."""
    with suppress(AttributeError, OSError):
        library = ctypes.CDLL(None)
        library.mallopt(_M_ARENA_MAX, 1)
        library.mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        library.mallopt(_M_TRIM_THRESHOLD, _LARGE_BYTES)


def return_free_memory() -> None:
    """Give the kernel back what was freed, as after the modules were loaded."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
