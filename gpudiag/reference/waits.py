"""What a stopped Python stack waits for, by its frames and the call in its line: waits.toml."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from gpudiag.reference.tables import read_table

RANKS = "ranks"
GPU = "gpu"
NETWORK = "network"
COMPILER = "compiler"
# To wait for either may be to wait for the other ranks: a GPU may be in a collective.
FOR_OTHERS = frozenset((RANKS, GPU))

# Names of threads that a process group runs, as the kernel cuts them off (c10d/ProcessGroupGloo.cpp,
# ProcessGroupNCCL.cpp, gloo's transport/tcp/loop.cc; torch 2.5 to 2.13).
GROUP_THREADS = ("pt_gloo_runloop", "gloo_tcp_loop", "pt_nccl_watchdg", "pt_nccl_heartbt")

# What torch.compile wrote: in its usual folder, or named by a hash in another one.
COMPILED = r"/torchinductor_[^/]*/|/[a-z2-7]{2}/c[a-z2-7]{51}\.py$"
# Installed code, Python's own, and what torch.compile wrote.
_LIBRARY = re.compile(rf"/(site|dist)-packages/|/lib(64)?/python\d|{COMPILED}|^<")


@dataclass(frozen=True, slots=True)
class Wait:
    """One way to wait: for what (`ranks`, `gpu`, `loader`, `lock` ...), in words, and its marks."""

    awaited: str
    words: str
    file: re.Pattern[str] | None = None
    function: re.Pattern[str] | None = None
    call: re.Pattern[str] | None = None
    step: bool = False  # part of a training step

    def fits(self, file: str, function: str) -> bool:
        """Whether a frame in that file and function waits in this way."""
        if self.file is None or not self.file.search(file):
            return False
        return self.function is None or bool(self.function.search(function))


@cache
def _waits() -> tuple[Wait, ...]:
    return tuple(
        Wait(
            entry["for"],
            entry["words"],
            file=re.compile(entry["file"]),
            function=re.compile(entry["function"]) if "function" in entry else None,
            step=entry.get("step", False),
        )
        for entry in read_table("waits.toml")["wait"]
    )


@cache
def _calls() -> tuple[Wait, ...]:
    return tuple(
        Wait(entry["for"], entry["words"], call=re.compile(entry["call"]))
        for entry in read_table("waits.toml")["call"]
    )


def is_library(file: str) -> bool:
    """Whether a file is Python's own or an installed library's, and not the user's."""
    return bool(_LIBRARY.search(file))


def find_wait(frames: Sequence[tuple[str, str]], awaited: str = "") -> Wait | None:
    """What a stack waits for, by its libraries' (file, function), innermost first; None if nothing known.

    With `awaited` only that counts.
    """
    waits = (wait for wait in _waits() if not awaited or wait.awaited == awaited)
    return next((wait for wait in waits if any(wait.fits(*frame) for frame in frames)), None)


def find_call(call: str) -> Wait | None:
    """What a call without a frame of its own waits for, by its text, such as `work.wait()`."""
    return next((wait for wait in _calls() if wait.call and wait.call.search(call)), None)


@cache
def _natives() -> tuple[tuple[re.Pattern[str], Wait], ...]:
    return tuple(
        (re.compile(entry["function"]), Wait(entry["for"], entry["words"]))
        for entry in read_table("waits.toml")["native"]
    )


def find_native_wait(functions: Sequence[str]) -> Wait | None:
    """What a thread waits for by its C functions (`cuStreamSynchronize (libcuda.so.1)`), innermost first."""
    return next(
        (wait for pattern, wait in _natives() if any(pattern.search(function) for function in functions)),
        None,
    )
