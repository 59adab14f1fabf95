"""NVML, asked from a guarded child: the only file that imports pynvml.

`stream_nvml` sends, as plain data:

    ("asking", CALL)              the call about no single GPU that is made next, to name one that hangs
    ("library", {...})            versions, once nvmlInit came back
    ("failed", {...})             what nvmlInit or a call before "count" raised; nothing follows
    ("count", N)
    ("all_asleep", [BUS_ID, ...]) all GPUs are, and NVML was not asked; nothing follows
    ("asleep", INDEX, BUS_ID)     a GPU that is not asked: that would wake it
    ("attaching", AT)             now the GPUs' handles are asked for (`time.monotonic`)
    ("attached", INDEX, AT, WAITED)  a handle has come, or was refused; of a slow one, how long its thread had no processor
    ("late", INDEX, CALL, {...})  a GPU that is still being asked: the call under way, its sheet so far
    ("device", INDEX, {...})      one GPU's sheet, when it is whole
    ("process", PID, {...})       what /proc says about one process on a GPU
    ("peers", INDEX, {...})       what lies between one GPU and the others (`peers`), once all of them are read
    ("calling", INDEX, CALL)      the call that is made next; only after a crash (careful.py)
    ("late_peers", INDEX, CALL, OTHER)  a call about this GPU and that other one that has not returned

A sheet's `failed_calls` are the calls that NVML answered with an error, each with NVML's words.
A call that never returns holds up one thread; every other GPU is then asked in a thread of its own.
"""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from threading import Event, Thread
from time import monotonic, sleep
from types import MappingProxyType
from typing import Any

from gpudiag.probe.attaching import COLD_SECONDS, HANDLE_CALL, SECONDS_PER_GPU
from gpudiag.probe.given_time import note_end_of_thread, own_thread_waited_seconds, waited_seconds
from gpudiag.probe.guard import OUTLIVES, PR_SET_PDEATHSIG, die_with
from gpudiag.probe.host.processes import read_process
from gpudiag.probe.nvml.ask import (
    LIBRARY_NOT_FOUND,
    Ask,
    DeviceSheet,
    Noted,
    as_text,
    code_of,
    enable_state,
    reason_of,
    state_of_init,
)
from gpudiag.probe.nvml.details import read_peer
from gpudiag.probe.nvml.device import read_device
from gpudiag.probe.nvml.early import LIBRARY
from gpudiag.probe.sheet import Sheet
from gpudiag.probe.start import SIMULATED

# --- a child that must not be killed half way


class Outliving:
    """Lets a child go on for `at_most_seconds` after its parent ends or gives it up; see `begin`."""

    def __init__(self, emit: Callable[[Any], None], at_most_seconds: int) -> None:
        """Start as a child that dies with its parent."""
        self.begun = False
        self._emit = emit
        self._seconds = at_most_seconds
        self._parent = os.getppid()

    def begin(self) -> None:
        """Outlive the parent from now on. The alarm ends even a process whose threads hang in a library."""
        import ctypes
        import signal

        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(self._seconds)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0)
        self.begun = True
        self._send(outlives=True)

    def end(self, keep_seconds: float) -> None:
        """Die with the parent again; if it has gone, stay for `keep_seconds` and exit."""
        import signal

        if os.getppid() != self._parent or not self._send(outlives=False):
            sleep(keep_seconds)
            os._exit(0)
        signal.alarm(0)
        self.begun = False
        die_with(self._parent)

    def _send(self, *, outlives: bool) -> bool:
        try:
            self._emit((OUTLIVES, outlives))
        except OSError:  # the parent no longer reads
            return False
        return True


# --- the child

Emit = Callable[[Any], None]

_QUICK_SECONDS = 0.02  # a GPU that takes longer must not hold up the others
_PATIENCE_SECONDS = 0.25  # without news of any; then the GPUs read so far are asked about each other
_KEPT_SECONDS = 30.0  # own choice: long enough for a person to ask again
_LATE_AFTER_SECONDS = 0.05  # how often incomplete rows are sent, in case of a hang


def stream_nvml(
    emit: Emit,
    root: str = "/",
    await_initialization: Callable[[], None] | None = None,
    *,
    wrap: Callable[[Any], Any] = lambda pynvml: pynvml,
    one_thread: bool = False,
    asleep: Mapping[int, str] = MappingProxyType({}),
    bound: int = 0,
) -> None:
    """Ask NVML about every GPU and send what it says; `root` is where /proc is found.

    `await_initialization` returns when the library, which is being initialised already, has answered. `wrap` makes of
    pynvml what is called instead; with `one_thread`, one GPU is asked after the other. `asleep` are the bus ids of GPUs that
    must not be woken, by NVML index, where the driver has `bound` of them: they are not asked.
    """

    def announce(call: str) -> None:
        emit(("asking", call))

    try:
        pynvml = load_pynvml()
        announce("nvmlInit")
        if await_initialization is not None:
            await_initialization()
        pynvml.nvmlInit()
        emit(("library", read_library(pynvml, announce)))
        announce("nvmlDeviceGetCount")
        count = pynvml.nvmlDeviceGetCount()
    except Exception as error:  # noqa: BLE001 - describe_failure judges it
        emit(("failed", describe_failure(error)))
        return
    emit(("count", count))
    emit(("attaching", monotonic()))
    pynvml = wrap(pynvml)
    sleeping = asleep if count == bound else {}  # else nobody knows which index is whose
    for index, bus_id in sleeping.items():
        emit(("asleep", index, bus_id))
    rows = [_Row(pynvml, index) for index in range(count) if index not in sleeping]
    attachment = _Attachment(rows, emit)
    start = partial(_start_for_each, one_thread=one_thread)
    start(rows, lambda row: row.read(emit, root), lambda row: row.done)
    attachment.wait()
    _await(rows, lambda row: row.done, lambda row: row.send_late(emit), patience_seconds=_PATIENCE_SECONDS)
    # Only now, and only for those already read: a call about two GPUs would cost both if one hangs.
    read = [row for row in rows if row.done.is_set()]
    start(read, lambda row: row.read_peers(emit, read), lambda row: row.peers_done)
    _await(read, lambda row: row.peers_done, lambda row: row.send_late_peers(emit))
    _await(rows, lambda row: row.done, lambda row: row.send_late(emit))


def _start_for_each(
    rows: list[_Row], act: Callable[[_Row], None], done: Callable[[_Row], Event], *, one_thread: bool
) -> None:
    """Call `act` for every GPU, in turn in one thread; once one takes long, in several threads.

    On a driver that answers at once, one thread reads eight GPUs in about 60 % of the time of eight
    threads, which contend for the interpreter lock (4.7 against 8 ms, simulated H100s).
    """
    waiting = iter(rows)

    def act_next() -> None:
        for row in waiting:
            act(row)
        note_end_of_thread()

    if rows:
        Thread(target=act_next, daemon=True).start()
    if not one_thread and not all(done(row).wait(_QUICK_SECONDS) for row in rows):
        for _ in rows[1:]:
            Thread(target=act_next, daemon=True).start()


def _await(
    rows: list[_Row],
    done: Callable[[_Row], Event],
    tell_late: Callable[[_Row], bool],
    *,
    patience_seconds: float = float("inf"),
) -> None:
    """Return when all are done, or after `patience_seconds` of given time without news; meanwhile report late ones."""
    heard, waited = monotonic(), waited_seconds()
    while late := [row for row in rows if not done(row).is_set()]:
        if done(late[0]).wait(_LATE_AFTER_SECONDS):
            continue
        if any([tell_late(row) for row in late]):
            heard, waited = monotonic(), waited_seconds()
        elif monotonic() - heard - (waited_seconds() - waited) > patience_seconds:
            return


class _Attachment:
    """The wait while the driver may be attaching GPUs: if killed then, it would have to start over."""

    def __init__(self, rows: list[_Row], emit: Emit) -> None:
        self._rows = rows
        self._emit = emit
        self._outliving = Outliving(emit, round(SECONDS_PER_GPU * len(rows) + _KEPT_SECONDS))

    def wait(self) -> None:
        """Return when every GPU has given its handle, or, where others came at once, after a short wait.

        If it takes long, this process may outlive its parent, and then keeps the GPUs attached for a while:
        the next program finds them awake.
        """
        began = monotonic()
        while late := [row for row in self._rows if not row.attached.is_set()]:
            if late[0].attached.wait(_LATE_AFTER_SECONDS):
                continue
            with suppress(OSError):  # the parent has given it up; it goes on
                for row in late:
                    row.send_late(self._emit)
            waited = monotonic() - began
            if len(late) < len(self._rows) and waited > _PATIENCE_SECONDS and not self._outliving.begun:
                return  # the driver is awake: these hang, and the others can be asked about each other
            if waited > COLD_SECONDS and not self._outliving.begun:
                self._outliving.begin()
        if self._outliving.begun:
            self._outliving.end(_KEPT_SECONDS)


class _Row:
    """One GPU being asked, in a thread of its own."""

    def __init__(self, pynvml: Any, index: int) -> None:
        self._pynvml = pynvml
        self._index = index
        self._sheet = DeviceSheet()
        self._ask: Ask | None = None
        self._sent_late: object = None
        self._about = index  # the other GPU of the call in progress
        self.attached = Event()
        self.done = Event()
        self.peers_done = Event()

    def read(self, emit: Emit, root: str) -> None:
        """Ask for everything, send the row, then describe its processes."""
        began = monotonic()
        self._sheet.read("handle", self._pynvml.nvmlDeviceGetHandleByIndex, self._index)
        handle = self._sheet.values.pop("handle", None)
        at = monotonic()
        waited = own_thread_waited_seconds() if at - began > COLD_SECONDS else 0.0
        with suppress(OSError):  # the parent has gone; still attach the other GPUs
            emit(("attached", self._index, at, waited))
        self.attached.set()
        if handle is not None:
            self._ask = Ask(self._pynvml, handle)
            read_device(self._ask, self._sheet)
        emit(("device", self._index, self._document()))
        for process in self._sheet.values.get("processes", ()):
            emit(("process", process["pid"], read_process(process["pid"], root)))
        self.done.set()

    def _document(self) -> dict[str, Any]:
        """The sheet with its failed calls; a loss noticed in part of a reading counts for the whole GPU."""
        noted = None if self._ask is None else self._ask.noted
        if noted is not None and noted.lost is not None and self._sheet.lost is None:
            self._sheet.lost = noted.lost
            self._sheet.mark("handle", *noted.lost)
        document = self._sheet.document()
        return document if noted is None else {**document, "failed_calls": dict(noted.failed)}

    def read_peers(self, emit: Emit, rows: list[_Row]) -> None:
        """Send what lies between this GPU and each of the others, if it answers and there are others."""
        others = [row for row in rows if row is not self and row.handle is not None]
        if self._ask is not None and self._sheet.lost is None and others:
            peers, noted = [], self._ask.noted
            noted.inforom_corrupted = False  # what its readings found was sent with them
            for other in others:
                self._about = other._index
                peers.append(read_peer(self._ask, other.bus_id, other.handle))
            if noted.inforom_corrupted:
                noted.failed.setdefault(noted.asking, "its InfoROM is corrupted (NVML 14)")
            if self._ask.noted.lost is not None and self._answers_no_more(self._ask):
                emit(("device", self._index, self._document()))
            else:
                emit(("peers", self._index, {"peers": peers, "failed_calls": dict(self._ask.noted.failed)}))
        self.peers_done.set()

    def _answers_no_more(self, ask: Ask) -> bool:
        """Whether it is this GPU that was lost, and not the peer in the call."""
        noted, self._about = ask.noted, self._index
        (_, words), call, noted.lost = noted.lost or ("", ""), noted.lost_in, None
        DeviceSheet().read("alone", ask, "nvmlDeviceGetUtilizationRates")
        if noted.lost is None:
            noted.failed.setdefault(call, words)
        return noted.lost is not None

    def send_late_peers(self, emit: Emit) -> bool:
        """Send the call about two GPUs that has not returned, if it is new; whether it was."""
        call = self._ask.asking if self._ask else ""
        if (call, self._about) != self._sent_late:
            self._sent_late = (call, self._about)
            emit(("late_peers", self._index, call, self._about))
            return True
        return False

    @property
    def handle(self) -> Any:
        """The GPU's handle; None for one that gave no bus id, or that is lost."""
        known = self._ask is not None and self._sheet.lost is None and "bus_id" in self._sheet.values
        return self._ask.handle if self._ask is not None and known else None

    @property
    def bus_id(self) -> str:
        """The GPU's bus id; empty where it gave none."""
        return str(self._sheet.values.get("bus_id", ""))

    def send_late(self, emit: Emit) -> bool:
        """Send what is known so far and the unanswered call, if either is new; whether one was."""
        call = self._ask.asking if self._ask else HANDLE_CALL
        document = self._sheet.document()
        document.pop("handle", None)
        if (call, len(document)) != self._sent_late:
            self._sent_late = (call, len(document))
            emit(("late", self._index, call, document))
            return True
        return False


def load_pynvml() -> Any:
    """The pynvml module of nvidia-ml-py.

    Raises:
        ImportError: it is not installed, or another package took its name.
    """
    with _without_ctypes_util():
        import pynvml

    if not hasattr(pynvml, "nvmlDeviceGetFieldValues"):
        raise ImportError(f"the pynvml in {os.path.dirname(pynvml.__file__)} is not nvidia-ml-py")
    return pynvml


@contextmanager
def _without_ctypes_util() -> Iterator[None]:
    """Replace ctypes.util by a stub while pynvml is imported, which saves a third of the import time.

    The real one imports subprocess, tempfile and shutil; pynvml uses it only on Windows.
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
    """The state of the source, NVML's words, and which library said them."""
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
