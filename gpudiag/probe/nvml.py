"""NVML, asked from a guarded child: the only file that imports pynvml.

`stream_nvml` sends, as plain data:

    ("library", {...})            versions and the number of GPUs, once nvmlInit came back
    ("failed", {...})             instead: what nvmlInit or the first question raised, and nothing follows
    ("late", INDEX, CALL, {...})  a GPU that is still being asked: the call under way, its sheet so far
    ("device", INDEX, {...})      one GPU's sheet, when it is whole
    ("process", PID, {...})       what /proc says about one process on a GPU
    ("peers", INDEX, [...])       what lies between one GPU and the others, when all of them are read

A call that never returns holds up one thread; every other GPU is then asked in a thread of its own.
"""

from __future__ import annotations

import os
import sys
import types
from contextlib import contextmanager
from threading import Event, Thread

from gpudiag.probe.nvml_ask import Ask, DeviceSheet, as_text, enable_state
from gpudiag.probe.nvml_details import read_peers
from gpudiag.probe.nvml_device import read_device
from gpudiag.probe.nvml_errors import code_of, reason_of, state_of_init
from gpudiag.probe.processes import read_process
from gpudiag.probe.sheet import Sheet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    Emit = Callable[[Any], None]

_QUICK_SECONDS = 0.02  # a GPU that takes longer must not hold up the others
_LATE_AFTER_SECONDS = 0.05  # how often the rows that are not whole are sent, for the case of a hang
_INSTALL = "install nvidia-ml-py (pip install nvidia-ml-py), not the package named pynvml"


def stream_nvml(emit: Emit, root: str = "/") -> None:
    """Ask NVML about every GPU and send what it says; `root` is where /proc is found."""
    try:
        pynvml = load_pynvml()
        pynvml.nvmlInit()
        emit(("library", read_library(pynvml)))
        count = pynvml.nvmlDeviceGetCount()
    except Exception as error:  # noqa: BLE001 - the gate judges it
        emit(("failed", describe_failure(error)))
        return
    emit(("count", count))
    rows = [_Row(pynvml, index) for index in range(count)]
    _start_reading(rows, emit, root)
    while unread := [row for row in rows if not row.done.wait(_LATE_AFTER_SECONDS)]:
        for row in unread:
            row.send_late(emit)
    # Only now: a question about two GPUs, one of which hangs, would cost both.
    for row in rows:
        row.send_peers(emit, rows)


def _start_reading(rows: list[_Row], emit: Emit, root: str) -> None:
    """Read the GPUs one after the other in one thread; as soon as one takes long, each in its own.

    On a driver that answers at once, one thread reads eight GPUs in about 60 % of the time of eight
    threads, which fight for the interpreter's lock (4.7 against 8 ms, simulated H100s).
    """
    waiting = iter(rows)

    def read_next() -> None:
        for row in waiting:
            row.read(emit, root)

    Thread(target=read_next, daemon=True).start()
    if not all(row.done.wait(_QUICK_SECONDS) for row in rows):
        for _ in rows[1:]:
            Thread(target=read_next, daemon=True).start()


class _Row:
    """One GPU being asked, in a thread of its own."""

    def __init__(self, pynvml: Any, index: int) -> None:
        self._pynvml = pynvml
        self._index = index
        self._sheet = DeviceSheet()
        self._ask: Ask | None = None
        self._sent_late: object = None
        self.done = Event()

    def read(self, emit: Emit, root: str) -> None:
        """Ask for everything, send the row, then describe its processes."""
        self._sheet.read("handle", self._pynvml.nvmlDeviceGetHandleByIndex, self._index)
        handle = self._sheet.values.pop("handle", None)
        if handle is not None:
            self._ask = Ask(self._pynvml, handle)
            read_device(self._ask, self._sheet)
        emit(("device", self._index, self._sheet.document()))
        for process in self._sheet.values.get("processes", ()):
            emit(("process", process["pid"], read_process(process["pid"], root)))
        self.done.set()

    def send_peers(self, emit: Emit, rows: list[_Row]) -> None:
        """Send what lies between this GPU and each of the others, if it answers and there are others."""
        others = [(row.bus_id, row.handle) for row in rows if row is not self and row.handle is not None]
        if self._ask is not None and self._sheet.lost is None and others:
            emit(("peers", self._index, read_peers(self._ask, others)))

    @property
    def handle(self) -> Any:
        """The GPU's handle; None for one that gave no bus id, or that is lost."""
        known = self._ask is not None and self._sheet.lost is None and "bus_id" in self._sheet.values
        return self._ask.handle if self._ask is not None and known else None

    @property
    def bus_id(self) -> str:
        """The GPU's bus id; empty where it gave none."""
        return str(self._sheet.values.get("bus_id", ""))

    def send_late(self, emit: Emit) -> None:
        """Send what is known so far, and the call that the GPU has not answered, if either is new."""
        call = self._ask.asking if self._ask else "nvmlDeviceGetHandleByIndex"
        document = self._sheet.document()
        document.pop("handle", None)
        if (call, len(document)) != self._sent_late:
            self._sent_late = (call, len(document))
            emit(("late", self._index, call, document))


def load_pynvml() -> Any:
    """The pynvml module of nvidia-ml-py.

    Raises:
        ImportError: it is not installed, or another package took its name.
    """
    with _without_ctypes_util():
        import pynvml

    if not hasattr(pynvml, "nvmlDeviceGetFieldValues"):
        raise ImportError(f"the pynvml in {os.path.dirname(pynvml.__file__)} is not nvidia-ml-py: {_INSTALL}")
    return pynvml


@contextmanager
def _without_ctypes_util() -> Iterator[None]:
    """A stand-in for ctypes.util while pynvml is loaded: a third of its time, for what it never calls here.

    The real one brings subprocess, tempfile and shutil along; pynvml has it for Windows.
    """
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


def read_library(pynvml: Any) -> dict[str, Any]:
    """Versions, as far as NVML gives them."""
    sheet = Sheet(reason_of)
    sheet.read("driver_version", as_text, pynvml.nvmlSystemGetDriverVersion)
    sheet.read("nvml_version", as_text, pynvml.nvmlSystemGetNVMLVersion)
    sheet.read("cuda_driver_version", _cuda_version, pynvml)
    sheet.read(
        "confidential_computing", lambda: enable_state(pynvml.nvmlSystemGetConfComputeState().ccFeature)
    )
    return sheet.document()


def _cuda_version(pynvml: Any) -> str:
    """The newest CUDA that the driver runs, `13.0`; NVML gives 13000."""
    number = pynvml.nvmlSystemGetCudaDriverVersion_v2()
    return f"{number // 1000}.{number % 1000 // 10}"


def describe_failure(error: Exception) -> dict[str, Any]:
    """The state of the source, NVML's words, and which library said them."""
    words = str(error) if isinstance(error, ImportError) else reason_of(error)[1]
    return {"state": state_of_init(error), "code": code_of(error), "words": words, "library": _library_path()}


def _library_path() -> str | None:
    """The file that was loaded as libnvidia-ml; its name usually carries the driver's version."""
    try:
        with open("/proc/self/maps") as maps:
            paths = [line.split(maxsplit=5)[-1].strip() for line in maps if "libnvidia-ml.so" in line]
    except OSError:
        return None
    return paths[0] if paths else None
