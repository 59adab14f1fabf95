"""The words by which programs name what a limit has refused them: memory, processes or files. Data; no I/O.

glibc's loader and strerror, Python, C++ and pthreads. A CUDA out of memory is a GPU's, and none of these.
"""

import re
from typing import Literal

Shortage = Literal["memory", "processes", "files"]

NO_THREAD = "can't start new thread"  # Python's: a stack without memory, or one process too many
_SIGNS: tuple[tuple[Shortage, "re.Pattern[str]"], ...] = (
    (
        "memory",
        re.compile(
            r"cannot allocate memory|failed to map segment|\bMemoryError\b|std::bad_alloc"
            r"|cannot create shared object descriptor",
            re.IGNORECASE,
        ),
    ),
    (
        "processes",
        re.compile(
            rf"{NO_THREAD}|resource temporarily unavailable|pthread_create failed|thread constructor failed",
            re.IGNORECASE,
        ),
    ),
    ("files", re.compile(r"too many open files", re.IGNORECASE)),
)


def find_shortage(words: str) -> Shortage | None:
    """What a program was refused, by its last words; None where they name no shortage."""
    return next((kind for kind, sign in _SIGNS if sign.search(words)), None)
