"""The C library's allocator, in processes that live for months.

glibc gives each thread that allocates a heap of its own ("arena", up to 8 for each processor; mallopt(3)), and what was freed
in one is never used in another. A process that mostly waits gains nothing by that, and keeps a few MiB more.
"""

import ctypes
from contextlib import suppress

_M_ARENA_MAX = -8  # malloc.h


def share_one_heap() -> None:
    """Have all threads that are started from now on allocate in one heap; does nothing where the C library has no such choice."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def return_free_memory() -> None:
    """Give the kernel back what was freed, as after the modules were loaded."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
