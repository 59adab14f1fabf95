"""What this process has loaded of CUDA and NCCL, and whether its forks may use CUDA.

Nothing here starts CUDA. The file runs under any interpreter from Python 3.9 on and imports nothing of
gpudiag: `probe/torch/program.py` loads it by its path.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

# The driver API's answer where cuInit has not been called in this process (CUresult, cuda.h).
_NOT_INITIALIZED = 3
# The error of torch in a fork of a process that it has marked, and of CUDA in a fork of one that has started
# it.
_WORDS_OF_A_FORK = ("in forked subprocess", "CUDA error: initialization error")


def driver_has_started() -> bool:
    """Whether CUDA's driver was started in this process, so that no fork of it can use CUDA.

    torch does not know of all such starts: its C++ asks for devices too (pytorch issues 144152, 190708).
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        return bool(driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) != _NOT_INITIALIZED)
    except (OSError, AttributeError):  # it is not loaded
        return False


def refuses_cuda(torch: Any) -> bool:
    """Whether torch refuses CUDA in this process because it is a fork of one that asked for CUDA."""
    is_in_bad_fork = getattr(getattr(torch, "cuda", None), "_is_in_bad_fork", None)
    return bool(is_in_bad_fork and is_in_bad_fork())


def speaks_of_a_fork(words: str) -> bool:
    """Whether an error of CUDA comes of asking in a fork, and proves nothing about the machine."""
    return any(part in words for part in _WORDS_OF_A_FORK)


def loaded_nccl(torch: Any) -> tuple[str, str | None]:
    """The version of the NCCL that torch calls, and its file; that of the build where it is a part of torch.

    `torch.cuda.nccl.version()` is a constant of the build. The library is another one where LD_PRELOAD names
    it or the wheel of NCCL was upgraded. A name that torch calls is looked up as the linker does: in all of
    the process, then in torch's own library and what it was linked with; last in the library of that name,
    whoever loaded it.

    Raises:
        Exception: whatever torch raises where it was built without NCCL.
    """
    built = built_nccl(torch)
    own = os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cuda.so")
    for place in (None, own, "libnccl.so.2"):
        try:
            library = ctypes.CDLL(place, mode=os.RTLD_NOLOAD | os.RTLD_NOW if place else os.RTLD_NOW)
            function = library.ncclGetVersion
        except (OSError, AttributeError):
            continue
        code = ctypes.c_int()
        if function(ctypes.byref(code)) == 0:
            return _version(code.value), _file_of(function)
    return built, None


def built_nccl(torch: Any) -> str:
    """The version of NCCL that torch was built with, as `torch.cuda.nccl.version()` returns it."""
    version = torch.cuda.nccl.version()
    return ".".join(str(part) for part in version)


def _version(code: int) -> str:
    """NCCL_VERSION_CODE as text: 2304 is 2.3.4, 23203 is 2.32.3 (nccl.h, from 2.9 on)."""
    if code < 10000:
        return f"{code // 1000}.{code // 100 % 10}.{code % 100}"
    return f"{code // 10000}.{code // 100 % 100}.{code % 100}"


class _Symbol(ctypes.Structure):
    """Dl_info of dladdr(3)."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def _file_of(function: Any) -> str | None:
    found = _Symbol()
    address = ctypes.cast(function, ctypes.c_void_p)
    try:
        known = ctypes.CDLL(None).dladdr(address, ctypes.byref(found))
    except AttributeError:  # a C library without it
        return None
    return os.path.realpath(os.fsdecode(found.file)) if known and found.file else None
