"""NVML asked once more after a call has ended the process: each call is announced, the deadly one left out.

A driver that crashes takes all readings with it. The next child announces each call; if it ends too, the last
one announced is left out by the child after that. It costs a message a call.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from time import monotonic
from typing import Any

from gpudiag.model.device import FATAL_CALL
from gpudiag.probe.guard import GuardedChild, collect, start_guarded
from gpudiag.probe.sheet import ERROR, Absent

CALLING = "calling"  # a message ("calling", INDEX, CALL): the call about that GPU that is made next
_MOST_TRIES = 5  # own choice: as many calls as may be left out
_HANDLE_OF_INDEX = "nvmlDeviceGetHandleByIndex"

Spared = Sequence[tuple[int, str, str]]  # NVML index, function, and how the process ended in it


class CarefulLibrary:
    """pynvml, with each call about a GPU announced, and those in `spared` left out."""

    def __init__(self, pynvml: Any, announce: Callable[[int, str], None], spared: Spared) -> None:
        """Wrap the module; `announce` gets NVML index and function before the call."""
        self._pynvml = pynvml
        self._announce = announce
        self._spared = {(index, name): words for index, name, words in spared}
        self._indices: dict[int | None, int] = {}  # by the address of a handle

    def __getattr__(self, name: str) -> Any:
        """The function of that name, or whatever else the module has."""
        function = getattr(self._pynvml, name)
        if not name.startswith("nvmlDevice") or not callable(function) or name == "nvmlDeviceGetCount":
            return function

        def call(*arguments: Any, **named: Any) -> Any:
            index = self._index_of(name, arguments)
            if (index, name) in self._spared:
                raise Absent(ERROR, f"{FATAL_CALL}: {self._spared[index, name]}")
            self._announce(index, name)
            answer = function(*arguments, **named)
            if name == _HANDLE_OF_INDEX:
                self._indices[_address(answer)] = index
            return answer

        return call

    def _index_of(self, name: str, arguments: Sequence[Any]) -> int:
        """The NVML index of the GPU that a call is about; -1 where it is not known, as of a MIG device."""
        if name == _HANDLE_OF_INDEX:
            return int(arguments[0])
        return self._indices.get(_address(arguments[0]), -1) if arguments else -1


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


def stream_nvml(emit: Callable[[Any], None], root: str, spared: Iterable[Sequence[Any]]) -> None:
    """Ask NVML about every GPU and send its answers; `root` is where /proc is found.

    `await_initialization` returns once the library, already initialising, has answered; `wrap` replaces
    pynvml; `one_thread` asks one GPU after the other. The driver has `bound` GPUs, of which those in `asleep`
    (bus ids by NVML index) are not asked.
    """
    from gpudiag.probe.nvml import child

    def announce(index: int, name: str) -> None:
        emit((CALLING, index, name))

    left_out = [(int(index), str(name), str(words)) for index, name, words in spared]
    child.stream_nvml(
        emit, root, wrap=lambda pynvml: CarefulLibrary(pynvml, announce, left_out), one_thread=True
    )


def ask_around_crashes(crashed: GuardedChild, root: str, deadline_seconds: float) -> GuardedChild:
    """An ended child without the calls that crash, or the last one, within `deadline_seconds` in all."""
    until = monotonic() + deadline_seconds
    spared: list[tuple[int, str, str]] = []
    child = crashed
    for _ in range(_MOST_TRIES):
        if child.ending != "crashed" or monotonic() > until:
            break
        called = [message[1:] for message in child.messages if message[0] == CALLING]
        if called:
            spared.append((*called[-1], child.detail.removeprefix("its process was ")))
        elif child is not crashed:  # not about a GPU: there is nothing to leave out
            break
        child = start_guarded("gpudiag.probe.nvml.careful:stream_nvml", root, spared)
        collect([(child, until)])
    return child
