"""NVML, asked once from a guarded child.

`stream_nvml` sends, as plain data:

    ("asking", CALL)              the call about no single GPU that is made next, to name one that hangs
    ("library", {...})            versions, once nvmlInit came back
    ("failed", {...})             what nvmlInit or a call before "count" raised; nothing follows
    ("count", N)
    ("all_asleep", [BUS_ID, ...]) all GPUs are, and NVML was not asked; nothing follows
    ("asleep", INDEX, BUS_ID)     a GPU that is not asked: that would wake it
    ("attaching", AT)             now the GPUs' handles are asked for (`time.monotonic`)
    ("attached", INDEX, AT, WAITED)  a handle has come, or was refused; of a slow one, how long its thread had
                                  no processor
    ("late", INDEX, CALL, {...})  a GPU that is still being asked: the call under way, its sheet so far
    ("device", INDEX, {...})      one GPU's sheet, when it is whole
    ("process", PID, {...})       what /proc shows of one process on a GPU
    ("peers", INDEX, {...})       what lies between one GPU and the others (`peers`), once all are read
    ("calling", INDEX, CALL)      the call that is made next; only after a crash (careful.py)
    ("late_peers", INDEX, CALL, OTHER)  a call about this GPU and that other one that has not returned

A sheet's `failed_calls` are the calls that NVML answered with an error, each with NVML's words.
A call that never returns holds up one thread; every other GPU is then asked in a thread of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from threading import Event
from time import monotonic, sleep
from types import MappingProxyType
from typing import Any

from gpudiag.linux.child import PR_SET_PDEATHSIG, die_with_parent
from gpudiag.probe.attaching import COLD_SECONDS, SECONDS_PER_GPU
from gpudiag.probe.given_time import own_thread_waited_seconds, waited_seconds
from gpudiag.probe.guard import OUTLIVES
from gpudiag.probe.host.processes import read_process
from gpudiag.probe.nvml.device import read_device
from gpudiag.probe.nvml.library import describe_failure, open_library
from gpudiag.probe.nvml.row import Row
from gpudiag.probe.nvml.workers import Batch, Workers

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
        die_with_parent(self._parent)

    def _send(self, *, outlives: bool) -> bool:
        try:
            self._emit((OUTLIVES, outlives))
        except OSError:  # the parent no longer reads
            return False
        return True


# --- the child

Emit = Callable[[Any], None]

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
    """Ask NVML about every GPU and send its answers; `root` is where /proc is found.

    `await_initialization` returns when the library, which is being initialised already, has answered. `wrap`
    makes of pynvml what is called instead; with `one_thread`, one GPU is asked after the other. `asleep` are
    the bus ids of GPUs that must not be woken, by NVML index, where the driver has `bound` of them: they are
    not asked.
    """
    try:
        pynvml, count = open_library(
            lambda call: emit(("asking", call)),
            lambda library: emit(("library", library)),
            await_initialization,
        )
    except Exception as error:  # noqa: BLE001 - describe_failure judges it
        emit(("failed", describe_failure(error)))
        return
    emit(("count", count))
    emit(("attaching", monotonic()))
    pynvml = wrap(pynvml)
    sleeping = asleep if count == bound else {}  # else nobody knows which index is whose
    for index, bus_id in sleeping.items():
        emit(("asleep", index, bus_id))
    rows = [_Row(pynvml, index, emit) for index in range(count) if index not in sleeping]
    most = 1 if one_thread else len(rows)
    reading = Workers(most).start(partial(row.read, root) for row in rows)
    _Attachment(rows, emit).wait()
    late = [row.send_late for row in rows]
    _await(reading, late, _PATIENCE_SECONDS)
    # Only now, and only for those already read: a call about two GPUs would cost both if one hangs.
    read = [row for row in rows if row.is_read]
    peers = Workers(most).start(partial(row.read_and_send_peers, read) for row in read)
    _await(peers, [row.send_late_peers for row in read])
    _await(reading, late)


def _await(batch: Batch, late: list[Callable[[], bool]], patience_seconds: float = float("inf")) -> None:
    """Return when all is read, or after `patience_seconds` of given time in which no `late` sends news."""
    last_news, waited = monotonic(), waited_seconds()
    while not batch.done.wait(_LATE_AFTER_SECONDS):
        if any([send_late() for send_late in late]):
            last_news, waited = monotonic(), waited_seconds()
        elif monotonic() - last_news - (waited_seconds() - waited) > patience_seconds:
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
                    row.send_late()
            waited = monotonic() - began
            if len(late) < len(self._rows) and waited > _PATIENCE_SECONDS and not self._outliving.begun:
                return  # the driver is awake: these hang, and the others can be asked about each other
            if waited > COLD_SECONDS and not self._outliving.begun:
                self._outliving.begin()
        if self._outliving.begun:
            self._outliving.end(_KEPT_SECONDS)


class _Row(Row):
    """A GPU that is asked once: each answer is sent when it comes."""

    def __init__(self, pynvml: Any, index: int, emit: Emit) -> None:
        super().__init__(pynvml, index)
        self.attached = Event()
        self.is_read = self.has_peers = False
        self._emit = emit
        self._sent_late: object = None

    def read(self, root: str) -> None:
        """Ask for everything, send the row, then describe its processes."""
        began = monotonic()
        ask = self.attach()
        at = monotonic()
        waited = own_thread_waited_seconds() if at - began > COLD_SECONDS else 0.0
        with suppress(OSError):  # the parent has gone; still attach the other GPUs
            self._emit(("attached", self.index, at, waited))
        self.attached.set()
        if ask is not None:
            read_device(ask, self.sheet)
        self._emit(("device", self.index, self.document()))
        for process in self.sheet.values.get("processes", ()):
            self._emit(("process", process["pid"], read_process(process["pid"], root)))
        self.is_read = True

    def read_and_send_peers(self, rows: list[_Row]) -> None:
        """Send what lies between this GPU and each of the others, or that it was lost meanwhile."""
        peers = self.read_peers(rows)
        if peers is None:
            self._emit(("device", self.index, self.document()))
        elif peers and self._ask is not None:
            failed_calls = dict(self._ask.noted.failed)
            self._emit(("peers", self.index, {"peers": peers, "failed_calls": failed_calls}))
        self.has_peers = True

    def send_late(self) -> bool:
        """Send the call that has not returned and what is known so far, if either is new; whether it was."""
        document = self.sheet.document()
        document.pop("handle", None)
        known = (self.call, len(document))
        return not self.is_read and self._send_if_new(known, ("late", self.index, self.call, document))

    def send_late_peers(self) -> bool:
        """Send the call about two GPUs that has not returned, if it is new; whether it was."""
        known = (self.call, self.peer)
        return not self.has_peers and self._send_if_new(known, ("late_peers", self.index, *known))

    def _send_if_new(self, known: object, message: tuple[Any, ...]) -> bool:
        if known == self._sent_late:
            return False
        self._sent_late = known
        self._emit(message)
        return True
