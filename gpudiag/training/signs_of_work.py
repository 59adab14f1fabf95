"""Whether a rank whose Python stack does not move still works: by its CPU time, children, I/O and sleeps."""

import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from gpudiag.linux.proc import descendants, read_stat
from gpudiag.probe.job.kernel import read_system_call
from gpudiag.probe.job.wait_targets import end_of_sleep

# A waiting thread uses none; on a loaded machine a working one may get only 10 ms of a second.
_MAIN_SECONDS = 0.01
# Threads that only watch and flush (NCCL's watchdog, a log writer) stay below.
_OTHER_THREADS_SHARE = 0.05
_CHILD_SECONDS = 0.02
_IO_BYTES = 64 * 1024  # of the whole process, between two looks: a heartbeat writes less
_MAIN_WORKS, _THREADS_WORK = "it uses the processor", "its threads use the processor"
USE_THE_PROCESSOR = frozenset((_MAIN_WORKS, _THREADS_WORK))


@dataclass(slots=True)
class SignsOfWork:
    """Compares this process, its descendants and its main thread between two calls of `read`.

    Call `read` from one dedicated thread, whose own CPU time and I/O are left out.
    """

    main: int = field(default_factory=lambda: threading.main_thread().ident or 0)
    root: Path = Path("/proc")
    clock: Callable[[], float] = time.monotonic
    _at: float | None = None
    _main_seconds: float = 0.0
    _other_seconds: float = 0.0
    _io_bytes: tuple[int, int] = (0, 0)
    _children: Mapping[int, tuple[str, float, int]] = field(default_factory=dict)
    _sleep_until: float | None = None
    _woken: int = 0

    def read(self, patience_seconds: float, *, network: bool = False) -> str | None:
        """The first sign of work since the last call, in words; None if there is none, and on the first call.

        A sleep counts if it ends within `patience_seconds`; with `network`, a wake-up counts too.
        """
        now = self.clock()
        woken = self._read_woken()
        signs = (
            woken if network else None,
            self._read_processor(now),
            self._read_children(),
            self._read_io(),
            self._read_sleep(now, patience_seconds),
        )
        first, self._at = self._at is None, now
        return None if first else next((sign for sign in signs if sign is not None), None)

    def _read_processor(self, now: float) -> str | None:
        main = 0.0
        with suppress(OSError):
            main = time.clock_gettime(time.pthread_getcpuclockid(self.main))
        other = time.process_time() - main - time.thread_time()
        spent, others = main - self._main_seconds, other - self._other_seconds
        self._main_seconds, self._other_seconds = main, other
        if spent >= _MAIN_SECONDS:
            return _MAIN_WORKS
        passed = now - (self._at or now)
        return _THREADS_WORK if passed and others >= _OTHER_THREADS_SHARE * passed else None

    def _read_children(self) -> str | None:
        before, self._children = self._children, self._descendants()
        for pid, (name, seconds, moved) in self._children.items():
            if pid not in before:
                return f"it started {name} (pid {pid})"
            _, seconds_before, moved_before = before[pid]
            if seconds - seconds_before >= _CHILD_SECONDS:
                return f"its child {name} (pid {pid}) uses the processor"
            if moved - moved_before >= _IO_BYTES:
                return f"its child {name} (pid {pid}) reads or writes"
        gone = before.keys() - self._children.keys()
        return f"its child {before[min(gone)][0]} ended" if gone else None

    def _descendants(self) -> dict[int, tuple[str, float, int]]:
        """Name, CPU seconds, and bytes read and written of each descendant process, by pid."""
        return {pid: self._look_at(pid) for pid in descendants(os.getpid(), str(self.root))}

    def _look_at(self, pid: int) -> tuple[str, float, int]:
        try:
            stat = read_stat(pid, root=str(self.root))
            name, seconds = stat.name, stat.cpu_seconds + stat.children_cpu_seconds
        except (OSError, IndexError):  # it has ended
            name, seconds = "a process", 0.0
        return name, seconds, sum(self._io_of(str(pid))[:2])

    def _read_io(self) -> str | None:
        own = sum(self._io_of(f"self/task/{threading.get_native_id()}"))
        now = (sum(self._io_of("self")) - own, sum(self._io_of(f"self/task/{os.getpid()}")))
        before, self._io_bytes = self._io_bytes, now
        moved = now[0] - before[0] >= _IO_BYTES or now[1] > before[1]
        return "it reads or writes" if moved else None

    def _io_of(self, task: str) -> tuple[int, int]:
        """Bytes read and bytes written, including those that the page cache served."""
        numbers = dict(
            line.split(": ") for line in _text(self.root / task / "io").splitlines() if ": " in line
        )
        return int(numbers.get("rchar", 0)), int(numbers.get("wchar", 0))

    def _read_woken(self) -> str | None:
        """A sign if the main thread was woken since the last look, as by arriving network data; or None."""
        lines = _text(self.root / "self" / "task" / str(os.getpid()) / "status").splitlines()
        count = next((int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt")), 0)
        before, self._woken = self._woken, count
        return "data still arrives over the network" if count > before else None

    def _read_sleep(self, now: float, patience_seconds: float) -> str | None:
        """A sign if the main thread is in the same sleep as at the last look, which ends in time; or None."""
        before, self._sleep_until = self._sleep_until, self._end_of_sleep()
        until = self._sleep_until
        if until is None or until != before or not now < until <= now + patience_seconds:
            return None
        return f"it sleeps for {until - now:.0f} s more"

    def _end_of_sleep(self) -> float | None:
        pid = os.getpid()
        call = read_system_call(pid, pid, f"{self.root}/self/task/{pid}")
        with suppress(OSError):
            return None if call is None else end_of_sleep(call)
        return None


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
