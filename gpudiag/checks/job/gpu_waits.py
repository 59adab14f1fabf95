"""Whether a thread waits for a GPU: by its C functions, a library's frame, or the call that its line makes.

Such a wait looks like work: `cuStreamSynchronize` spins in state R. Behind a collective it is a wait for
other ranks. So processor time alone never shows that a rank works.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gpudiag.compat import StrEnum
from gpudiag.model.job import Frame, RankSeen, ThreadLook
from gpudiag.reference.waits import GPU, find_call, find_native_wait, find_wait, is_library

_PRINTS = ("print(", "if ", "elif ", "while ", "assert ", 'f"', "f'", "str(", "repr(", ".format(")


class KnownBy(StrEnum):
    """What shows that a thread waits for a GPU."""

    NATIVE = "native"  # its C functions: certain
    FRAME = "frame"  # a function of a library that waits for the GPU
    LINE = "line"  # the call in its line, which waits where the tensor is on a GPU


@dataclass(frozen=True, slots=True)
class GpuWait:
    """One wait for a GPU: what shows it, and the call, for people."""

    known_by: KnownBy
    call: str  # `cuStreamSynchronize`, `.item()`, `synchronize`


def uses_gpu(seen: RankSeen) -> bool:
    """Whether a rank has a GPU's device open, or its driver's library loaded."""
    return bool(seen.gpus or seen.driver)


def find_gpu_wait(thread: ThreadLook, *, rank_uses_gpu: bool) -> GpuWait | None:
    """The wait for a GPU that a thread is in; None where nothing shows one, or its C functions show none.

    A thread that sleeps in a system call waits for something else, but for a lock, by which some drivers
    wait.
    """
    if thread.native:
        wait = find_native_wait(thread.native)
        if wait is None or wait.awaited != GPU:
            return None
        return GpuWait(KnownBy.NATIVE, _first_named(thread.native))
    if not rank_uses_gpu or (
        thread.state != "R" and thread.syscall not in ("", "futex", "ioctl", "sched_yield")
    ):
        return None
    if thread.holds_gil:  # whoever waits for a GPU lets others run Python; only JAX and a few more keep it
        return None
    return find_wait_in_frames(thread.frames)


def find_wait_in_frames(frames: Sequence[Frame]) -> GpuWait | None:
    """The wait for a GPU by a Python stack alone: the library's function, or the innermost line's call."""
    library: list[tuple[str, str]] = []
    for frame in frames:
        if not is_library(frame.file):
            break
        library.append((frame.file, frame.function.rpartition(".")[2]))
    waiting = next((place for place, one in enumerate(library) if find_wait([one], GPU) is not None), None)
    if waiting is not None:
        return GpuWait(KnownBy.FRAME, frames[waiting].function)
    if not frames or find_wait(library) is not None:
        return None
    by_line = _call_of(frames[0])
    return GpuWait(KnownBy.LINE, by_line) if by_line else None


def _call_of(frame: Frame) -> str:
    """The call of a line that waits for the GPU, as a word: `.item()`; empty where it has none."""
    text = frame.text
    wait = find_call(text.rpartition("=")[2].strip()) or find_call(text)
    if wait is not None and wait.awaited == GPU:
        for word in ("item", "tolist", "cpu", "numpy", "synchronize", "block_until_ready", "asnumpy", "to"):
            if f".{word}(" in text:
                return f".{word}()"
        return "float()" if "float(" in text else "int()" if "int(" in text else "bool()"
    tensors = [name for name, _ in frame.tensors]
    if any(mark in text for mark in _PRINTS) and any(_names(text, name) for name in tensors):
        return "the value of a tensor"
    return ""


def _names(text: str, name: str) -> bool:
    """Whether a line uses a variable by its name."""
    return any(word == name for word in _words(text))


def _words(text: str) -> list[str]:
    return "".join(letter if letter.isalnum() or letter == "_" else " " for letter in text).split()


def named_tensors(frame: Frame) -> tuple[str, ...]:
    """The tensors among a frame's variables that its line names, whose value it may wait for."""
    return tuple(name for name, _ in frame.tensors if _names(frame.text, name))


def _first_named(native: Sequence[str]) -> str:
    """The innermost C function with a name that waits: `cuStreamSynchronize`."""
    for function in native:
        if find_native_wait((function,)) is not None:
            return function.partition(" (")[0].partition("(")[0]
    return "the driver"
