"""NVML's library: loaded, initialised, its versions, or why not. The only file that imports pynvml."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from gpudiag.probe.nvml import LIBRARY
from gpudiag.probe.nvml.ask import (
    LIBRARY_NOT_FOUND,
    Noted,
    as_text,
    code_of,
    enable_state,
    reason_of,
    state_of_init,
)
from gpudiag.probe.sheet import Sheet
from gpudiag.probe.start import SIMULATED


def open_library(
    announce: Callable[[str], None],
    emit_library: Callable[[dict[str, Any]], None],
    await_initialization: Callable[[], None] | None = None,
) -> tuple[Any, int]:
    """The pynvml module, initialised, and how many GPUs NVML counts.

    `announce` gets each call before it is made, `emit_library` what `read_library` returns.
    `await_initialization` returns once the library, already initialising, has answered. Raises what
    `describe_failure` describes.
    """
    pynvml = load_pynvml()
    announce("nvmlInit")
    if await_initialization is not None:
        await_initialization()
    pynvml.nvmlInit()
    emit_library(read_library(pynvml, announce))
    announce("nvmlDeviceGetCount")
    return pynvml, pynvml.nvmlDeviceGetCount()


def load_pynvml() -> Any:
    """The pynvml module of nvidia-ml-py. Raises ImportError: it is absent, or another took its name."""
    with _without_ctypes_util():
        import pynvml

    if not hasattr(pynvml, "nvmlDeviceGetFieldValues"):
        raise ImportError(f"the pynvml in {os.path.dirname(pynvml.__file__)} is not nvidia-ml-py")
    return pynvml


@contextmanager
def _without_ctypes_util() -> Iterator[None]:
    """Replace ctypes.util, which pynvml uses on Windows only, by a stub: a third of its import time."""
    if "ctypes.util" in sys.modules:
        yield
        return
    stand_in = types.ModuleType("ctypes.util")
    stand_in.find_library = lambda name: None  # type: ignore[attr-defined]
    sys.modules["ctypes.util"] = stand_in
    try:
        yield
    finally:
        del sys.modules["ctypes.util"]


def read_library(pynvml: Any, announce: Callable[[str], None] = lambda call: None) -> dict[str, Any]:
    """Versions, where NVML gives them; `announce` gets each call before it is made."""
    sheet = Sheet(reason_of)
    noted = Noted()

    def ask(call: str) -> Any:
        announce(call)
        try:
            return getattr(pynvml, call)()
        except Exception as error:
            noted.note(call, *reason_of(error))
            raise

    sheet.read("driver_version", as_text, lambda: ask("nvmlSystemGetDriverVersion"))
    sheet.read("nvml_version", as_text, lambda: ask("nvmlSystemGetNVMLVersion"))
    sheet.read("cuda_driver_version", lambda: _cuda_version(ask("nvmlSystemGetCudaDriverVersion_v2")))
    sheet.read("confidential_computing", lambda: enable_state(ask("nvmlSystemGetConfComputeState").ccFeature))
    if noted.lost is not None:  # no GPU was asked: count the loss as a failed call
        noted.failed.setdefault(noted.lost_in, noted.lost[1])
    return {**sheet.document(), "failed_calls": noted.failed}


def _cuda_version(number: int) -> str:
    """The newest CUDA that the driver runs, `13.0`; NVML gives 13000."""
    return f"{number // 1000}.{number % 1000 // 10}"


def describe_failure(error: Exception) -> dict[str, Any]:
    """The state of the source, NVML's words, and the library that gave them."""
    state, code = state_of_init(error), code_of(error)
    words = str(error) if isinstance(error, ImportError) else reason_of(error)[1]
    if code == LIBRARY_NOT_FOUND:
        broken = _why_not_loaded()
        if broken is not None:  # the file is there and cannot be loaded; NVML's code is the same
            state, code, words = "failed", None, broken
    return {"state": state, "code": code, "words": words, "library": _library_path()}


def _why_not_loaded() -> str | None:
    """The linker's words for a libnvidia-ml.so.1 that is here and cannot be loaded; None: there is none."""
    from ctypes import CDLL

    try:
        CDLL(LIBRARY)
    except OSError as error:
        words = str(error)
    else:
        return None
    # On a simulated machine an empty file stands for none: it ends the linker's search.
    if f"{LIBRARY}: cannot open shared object file: No such file" in words or os.environ.get(SIMULATED):
        return None
    return f"the driver's library cannot be loaded: {words}"


def _library_path() -> str | None:
    """The file that was loaded as libnvidia-ml; its name usually carries the driver's version."""
    try:
        with open("/proc/self/maps") as maps:
            paths = [line.split(maxsplit=5)[-1].strip() for line in maps if "libnvidia-ml.so" in line]
    except OSError:
        return None
    return paths[0] if paths else None
