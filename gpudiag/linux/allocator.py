"""The C library's allocator, in processes that live for months.

glibc gives each thread that allocates a heap of its own ("arena", up to 8 for each processor; mallopt(3)), and what was freed
in one is never used in another; and it keeps more free memory, and larger blocks, the larger those were that it was asked for. A
process that mostly waits gains nothing by either, and keeps a few MiB more.
"""

import ctypes
from contextlib import suppress

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # malloc.h
_LARGE_BYTES = (
    64 * 1024
)  # a message of the sampler is larger: it gets pages of its own, which go back to the kernel


def keep_little_memory() -> None:
    """Have all threads that are started from now on allocate in one heap, and what is free go back to the kernel.

    Does nothing where the C library has no such choice.
    """
    with suppress(AttributeError, OSError):
        library = ctypes.CDLL(None)
        library.mallopt(_M_ARENA_MAX, 1)
        library.mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        library.mallopt(_M_TRIM_THRESHOLD, _LARGE_BYTES)


def return_free_memory() -> None:
    """Give the kernel back what was freed, as after the modules were loaded."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
