"""Run a probe in a child process with a deadline: a hang, a crash or a kill costs the probe, never us.

A call into a wedged driver never returns. So a child makes it, forked before any driver library is loaded (a
millisecond; an interpreter takes ten), and sends messages over a pipe: plain data (None, bool, int, float,
str, list, tuple, dict with str keys). At the deadline the parent takes what came and kills the child
without waiting: one in uninterruptible sleep cannot be reaped, and keeps none of our descriptors.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import gc
import json
import marshal
import os
import select
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import Lock
from time import monotonic
from typing import Any

from gpudiag.errors import ShortageError
from gpudiag.linux.child import (
    Child,
    KilledChildren,
    die_with_parent,
    drop_standard_files,
    with_import_path,
)

RESULT_FD = 3  # where a program writes its messages
OUTLIVES = "outlives"  # a message ("outlives", True): from now on the child is left to end by itself
_M_ARENA_MAX = -8  # malloc.h of glibc
_SHORTAGE = "shortage"  # a message ("shortage", WORDS, HINT): this process was refused what the probe needs
_READ_BYTES = 1 << 16
_NOISE_BYTES = 4096  # of a program's own output, kept as evidence
_REAP_SECONDS = 0.1  # how long a killed child may take to become reapable before we leave it alone


def marshal_writer(fd: int) -> Callable[[Any], None]:
    """An `emit` for a forked child: whole messages, from any thread."""
    lock = Lock()

    def emit(message: Any) -> None:
        body = marshal.dumps(message)
        data = len(body).to_bytes(4, "little") + body
        with lock:
            while data:
                data = data[os.write(fd, data) :]

    return emit


def pop_marshal(received: bytearray) -> list[Any]:
    """The complete messages at the start of `received`, which are removed from it."""
    messages = []
    while len(received) >= 4:
        end = 4 + int.from_bytes(received[:4], "little")
        if len(received) < end:
            break
        # Our own fork of this very interpreter wrote it.
        messages.append(marshal.loads(received[4:end]))  # noqa: S302
        del received[:end]
    return messages


def pop_json(received: bytearray) -> list[Any]:
    """The complete lines at the start of `received` as messages; the lines are removed from it."""
    import json

    *lines, rest = bytes(received).split(b"\n")
    received[:] = rest
    messages = []
    for line in lines:
        try:
            messages.append(json.loads(line))
        except (ValueError, RecursionError):
            messages.append(["garbled", line.decode(errors="replace").strip()])
    return messages


_killed = KilledChildren()


class GuardedChild:
    """A running probe: its messages so far, and how it ended.

    `ending` is None while it runs, then `finished`, `raised`, `crashed` or `timed_out`; `detail` is the
    reason. `seconds`: what the probe took, of a fork without the time in which it waited for a processor.
    """

    def __init__(
        self,
        pid: int,
        result_fd: int,
        noise_fd: int | None,
        *,
        group: bool,
        json: bool,
        end: Callable[[], int | None] | None = None,
    ) -> None:
        """Watch a child that was just started; `group`: it leads a process group of its own.

        `end` ends one that is another process's child: it kills what is left of it, and returns its exit
        status or minus the signal, None if that is not known, almost at once.
        """
        self.pid = pid
        self.messages: list[Any] = []
        self.ending: str | None = None
        self.detail = ""
        self.seconds = 0.0
        self.started_at = monotonic()
        self.shortage: tuple[str, str] | None = None  # what the child was refused, and the next step
        self._outlives = False  # it has asked not to be killed
        self._group = group
        self._child = Child(pid, leads_group=group)
        self._end_other = end
        self._pop = pop_json if json else pop_marshal
        self._received = {result_fd: bytearray()}
        self._result_fd = result_fd
        self._noise_fd = noise_fd
        if noise_fd is not None:
            self._received[noise_fd] = bytearray()

    def descriptors(self) -> list[int]:
        """The descriptors to poll; empty once it has ended."""
        return [] if self.ending else list(self._received)

    def receive(self, fd: int) -> None:
        """Read what `fd` has without blocking, and notice the end of the probe."""
        data = os.read(fd, _READ_BYTES)
        received = self._received[fd]
        received += data
        if fd == self._result_fd:
            self._add_messages(self._pop(received))
            if not data:
                self._end()
        elif not data:
            os.close(fd)
            del self._received[fd]
            self._noise_fd = None
            self.detail = _text(received)
        elif len(received) > _NOISE_BYTES:
            del received[:-_NOISE_BYTES]

    def _add_messages(self, messages: list[Any]) -> None:
        for message in messages:
            if message[0] == OUTLIVES:
                self._outlives = message[1]
            elif message[0] == _SHORTAGE:
                self.shortage = (message[1], message[2])
            else:
                self.messages.append(message)

    def give_up(self) -> None:
        """Kill the child and all that it started, without waiting; not one that has asked to outlive us."""
        if self.ending is not None:
            return
        if self.messages and self.messages[-1][0] in ("finished", "raised"):
            self._end()  # it finished at the last moment, and only its pipe is still open
        else:
            self._close("timed_out")

    def _end(self) -> None:
        """Record how it ended, once its result pipe is closed: finished, raised or crashed."""
        kind, *rest = self.messages[-1] if self.messages else ("",)
        if kind == "finished":
            self.messages.pop()
            self._close("finished", seconds=None if self._group else rest[0])
        elif kind == "raised":
            self.messages.pop()
            self._close("raised", detail=rest[0])
        else:
            self._close("crashed")

    def _close(self, ending: str, *, seconds: float | None = None, detail: str = "") -> None:
        noise = self._drain_noise()
        code: int | None = None
        if self._end_other is not None:
            code = self._end_other()
        elif (ending != "finished" or self._group) and not self._outlives:
            self._child.kill()
        for fd in self._received:
            os.close(fd)
        self._received.clear()
        self.ending = ending
        self.seconds = monotonic() - self.started_at if seconds is None else seconds
        if self._end_other is None:
            code = self._child.wait(0.0 if self._outlives else _REAP_SECONDS)
            _killed.add(self._child)
        self.detail = detail or (noise if ending != "crashed" else " ".join((_how(code), noise)).strip())

    def _drain_noise(self) -> str:
        """What the program printed, as far as it can be read without waiting."""
        fd = self._noise_fd
        if fd is None:
            return self.detail
        received = self._received[fd]
        ready = select.poll()  # not select: a service has more than 1,024 descriptors
        ready.register(fd, select.POLLIN)
        while ready.poll(0) and (data := os.read(fd, _READ_BYTES)):
            received += data
        return _text(received[-_NOISE_BYTES:])


def start_guarded(entry: str, *arguments: Any) -> GuardedChild:
    """A child that runs `entry`, written `module:function`, as `function(emit, *arguments)` on plain data.

    It dies with the thread that started it. In a multi-threaded process, where a fork could inherit a held
    lock, it is a second interpreter.

    Raises:
        ShortageError: no process can be started here, or there is no /proc.
    """
    _killed.count()
    if _has_threads():
        return _start_interpreter(entry, arguments)
    result, write_end = os.pipe()
    parent = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:
        raise _refused(error, result, write_end) from error
    if pid == 0:
        _run_forked(parent, write_end, entry, arguments)
    os.close(write_end)
    return GuardedChild(pid, result, None, group=False, json=False)


def start_program(argv: Sequence[str], environment: Mapping[str, str]) -> GuardedChild:
    """A child that runs the program `argv`, in a process group that is killed with it.

    It writes messages to file descriptor 3, one JSON array a line, the last one `["finished", SECONDS]`. What
    it prints is kept as evidence.

    Raises:
        ShortageError: no process can be started here.
    """
    _killed.count()
    result, result_write = os.pipe()
    noise, noise_write = os.pipe()
    parent = os.getpid()
    try:
        pid = _fork_to_exec()
    except OSError as error:
        raise _refused(error, result, result_write, noise, noise_write) from error
    if pid == 0:
        _exec(parent, result_write, noise_write, argv, environment)
    os.close(result_write)
    os.close(noise_write)
    return GuardedChild(pid, result, noise, group=True, json=True)


def raise_shortage(children: Iterable[GuardedChild | None]) -> None:
    """Raise what one of these children was refused, if any: its answer is not about the machine.

    Raises:
        ShortageError: a child was refused memory, threads or files.
    """
    for child in children:
        if child is not None and child.shortage is not None:
            words, hint = child.shortage
            raise ShortageError(words, hint=hint)


def collect(deadlines: Iterable[tuple[GuardedChild, float | Callable[[], float]]]) -> None:
    """Wait until each child has ended or its deadline (`time.monotonic`) has passed; give up the late ones.

    A callable deadline is called again after every message. An interrupt gives up all children.
    """
    waiting = [(child, deadline) for child, deadline in deadlines if child.ending is None]
    try:
        while waiting:
            _receive_until(waiting, min(_moment(deadline) for _, deadline in waiting))
            now = monotonic()
            for child, deadline in waiting:
                if _moment(deadline) <= now:
                    child.give_up()
            waiting = [(child, deadline) for child, deadline in waiting if child.ending is None]
    finally:
        for child, _ in waiting:
            child.give_up()


def _moment(deadline: float | Callable[[], float]) -> float:
    return deadline() if callable(deadline) else deadline


def _receive_until(waiting: list[tuple[GuardedChild, float | Callable[[], float]]], until: float) -> None:
    """Receive what any of the children sends next, but wait no longer than `until` (`time.monotonic`)."""
    poll = select.poll()
    owners = {fd: child for child, _ in waiting for fd in child.descriptors()}
    for fd in owners:
        poll.register(fd, select.POLLIN)
    for fd, _ in poll.poll(max(0.0, until - monotonic()) * 1000):
        if fd in owners[fd].descriptors():
            owners[fd].receive(fd)


def run_guarded(entry: str, deadline_seconds: float, *arguments: Any) -> GuardedChild:
    """The ended child of one probe: `start_guarded` and `collect` in one."""
    child = start_guarded(entry, *arguments)
    collect([(child, child.started_at + deadline_seconds)])
    return child


def _run_forked(parent: int, write_end: int, entry: str, arguments: Sequence[Any]) -> None:
    """Run the probe in the forked child; never returns."""
    try:
        gc.disable()  # it lives for one answer
        emit = marshal_writer(write_end)
        try:
            die_with_parent(parent)
            # Each further one takes 64 MB of a limited address space.
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)
            _forget_signals()
            drop_standard_files()
            _close_all_but(write_end)
        except OSError as error:
            emit_shortage(emit, error)
            raise
        run_entry(entry, arguments, emit)
    finally:
        os._exit(0)


def _refused(error: OSError, *descriptors: int) -> ShortageError:
    """The error where the kernel has refused a process; the pipes made for it are closed."""
    from gpudiag.shortage import lack_of_memory, lack_of_processes

    for descriptor in descriptors:
        os.close(descriptor)
    return lack_of_memory() if error.errno == errno.ENOMEM else lack_of_processes()


def run_entry(entry: str, arguments: Sequence[Any], emit: Callable[[Any], None]) -> None:
    """Call the probe and emit how it ended: `finished` or `raised`."""
    started = monotonic()
    try:
        module, _, function = entry.partition(":")
        __import__(module)
        getattr(sys.modules[module], function)(emit, *arguments)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the parent reports it
        emit_shortage(emit, error)
        emit(("raised", f"{type(error).__name__}: {error}"))
    else:
        from gpudiag.probe.given_time import given_seconds

        emit(("finished", given_seconds(monotonic() - started)))


def emit_shortage(emit: Callable[[Any], None], error: BaseException) -> bool:
    """Report what this process was refused, if the error is a sign of that; whether it is."""
    from gpudiag.shortage import shortage_of

    shortage = shortage_of(error)
    if shortage is not None:
        emit((_SHORTAGE, shortage.message, shortage.hint))
    return shortage is not None


def _forget_signals() -> None:
    """Drop the handlers inherited from the parent; Ctrl-C is the parent's to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _close_all_but(*kept: int) -> None:
    """Close every descriptor above 2 but `kept`."""
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd > 2 and fd not in kept:
            try:
                os.close(fd)
            except OSError:
                continue  # the one that listed the directory


def _fork_to_exec() -> int:
    """`os.fork`, without the warning about threads: the child calls exec at once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _exec(
    parent: int, result_write: int, noise_write: int, argv: Sequence[str], environment: Mapping[str, str]
) -> None:
    """Become the program `argv`; never returns."""
    try:
        die_with_parent(parent)
        os.setpgid(0, 0)
        _forget_signals()
        # Copies above the targets first, so that no dup2 closes what a later one copies.
        null = os.open(os.devnull, os.O_RDONLY)
        copies = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (null, noise_write, noise_write, result_write)]
        for source, target in zip(copies, (0, 1, 2, RESULT_FD), strict=True):
            os.dup2(source, target)
        _close_all_but(RESULT_FD)
        os.execvpe(argv[0], list(argv), dict(environment))  # noqa: S606 - no shell is the point
    except OSError as error:
        os.write(2, f"{argv[0]} could not be started: {error.strerror}".encode())
    finally:
        os._exit(127)


def _has_threads() -> bool:
    """Whether this process has more than its main thread. Raises ShortageError: there is no /proc."""
    try:
        return len(os.listdir("/proc/self/task")) > 1
    except FileNotFoundError:
        from gpudiag.shortage import lack_of_proc

        raise lack_of_proc() from None


def _start_interpreter(entry: str, arguments: Sequence[Any]) -> GuardedChild:
    argv = [sys.executable, "-m", "gpudiag.probe.guarded", entry, json.dumps(arguments)]
    return start_program(argv, with_import_path(os.environ))


def _how(code: int | None) -> str:
    """How a process ended, in words."""
    if code is None:
        return "its process ended"
    if code >= 0:
        return f"its process exited with status {code}"
    return f"its process was killed by {signal.Signals(-code).name}"


def _text(data: bytes | bytearray) -> str:
    return bytes(data).decode(errors="replace").strip()
