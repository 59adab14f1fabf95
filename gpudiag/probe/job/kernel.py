"""What the kernel shows of a process at one moment: its threads' states, what they wait in, and for what."""

import os
import platform
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from time import monotonic

from gpudiag.linux.cgroup import (
    find_folders,
    find_processor_folders,
    frozen_by,
    read_file,
    read_processor_limit,
    read_quota,
)
from gpudiag.linux.proc import read_schedule, read_stat, read_status, read_text, read_wait_channel
from gpudiag.model.job import Awaited, ProcessLook, QuotaLook, ThreadLook
from gpudiag.model.reading import Missing, MissingReason, Reading
from gpudiag.probe.job.proc import describe_process
from gpudiag.probe.job.wait_targets import Call, find_awaited, read_wake_up

_MOST_THREADS = 400  # of one process; the main thread is among them

# The numbers of calls that wait, from linux/arch/x86/entry/syscalls/syscall_64.tbl and
# include/uapi/asm-generic/unistd.h.
_X86_64 = (
    {0: "read", 1: "write", 2: "open", 4: "stat", 5: "fstat", 6: "lstat", 7: "poll", 16: "ioctl"}
    | {17: "pread64", 18: "pwrite64", 19: "readv", 20: "writev", 21: "access", 23: "select", 34: "pause"}
    | {35: "nanosleep", 42: "connect", 43: "accept", 44: "sendto", 45: "recvfrom", 46: "sendmsg"}
    | {47: "recvmsg", 61: "wait4", 72: "fcntl", 73: "flock", 74: "fsync", 75: "fdatasync"}
    | {76: "truncate", 77: "ftruncate", 78: "getdents", 82: "rename", 83: "mkdir", 87: "unlink"}
    | {128: "rt_sigtimedwait", 130: "rt_sigsuspend", 137: "statfs", 162: "sync", 165: "mount"}
    | {202: "futex", 217: "getdents64", 230: "clock_nanosleep", 232: "epoll_wait", 247: "waitid"}
    | {257: "openat", 262: "newfstatat", 263: "unlinkat", 264: "renameat", 270: "pselect6", 271: "ppoll"}
    | {275: "splice", 277: "sync_file_range", 281: "epoll_pwait", 285: "fallocate", 288: "accept4"}
    | {295: "preadv", 296: "pwritev", 299: "recvmmsg", 306: "syncfs", 316: "renameat2"}
    | {326: "copy_file_range", 332: "statx", 426: "io_uring_enter", 441: "epoll_pwait2", 56: "clone"}
    | {57: "fork", 58: "vfork", 435: "clone3", 64: "semget", 65: "semop", 220: "semtimedop"}
)
_ARM64 = (
    {63: "read", 64: "write", 65: "readv", 66: "writev", 67: "pread64", 68: "pwrite64", 56: "openat"}
    | {79: "newfstatat", 80: "fstat", 73: "ppoll", 72: "pselect6", 29: "ioctl", 101: "nanosleep"}
    | {115: "clock_nanosleep", 203: "connect", 202: "accept", 206: "sendto", 207: "recvfrom", 211: "sendmsg"}
    | {212: "recvmsg", 260: "wait4", 95: "waitid", 25: "fcntl", 32: "flock", 82: "fsync", 83: "fdatasync"}
    | {61: "getdents64", 98: "futex", 22: "epoll_pwait", 291: "statx", 137: "rt_sigtimedwait"}
    | {133: "rt_sigsuspend", 76: "splice", 81: "sync", 47: "fallocate", 242: "accept4", 243: "recvmmsg"}
    | {267: "syncfs", 285: "copy_file_range", 426: "io_uring_enter", 220: "clone", 435: "clone3"}
    | {193: "semop", 192: "semtimedop", 43: "statfs", 35: "unlinkat", 276: "renameat2"}
)
_NAMES = {"x86_64": _X86_64, "aarch64": _ARM64}.get(platform.machine(), {})


@dataclass(frozen=True, slots=True)
class Schedule:
    """When a thread had a processor: how long in all, how often, and when last by the kernel's own clock."""

    run_seconds: float | None
    switches: int
    last_ms: float | None


class SchedulerClocks:
    """Each processor's scheduler clock, which counts no interrupts and no time that a hypervisor took.

    So they drift apart, by seconds in an hour on a busy virtual machine: when a thread last ran is known by
    the clock of the processor that it ran on, which is read by running there for a moment.
    """

    def __init__(self) -> None:
        self._offsets: dict[int, float] = {}  # to the monotonic clock, in milliseconds
        self._lock = Lock()

    def read_ms(self, processor: int) -> float | None:
        """The clock of that processor now; this thread's own where it may not run there.

        It is None where none is shown.
        """
        with self._lock:
            offset = self._offsets.get(processor)
            if offset is None:
                offset = _measure_offset(processor)
                if offset is None:
                    return None
                self._offsets[processor] = offset
        return monotonic() * 1000 + offset


def _measure_offset(processor: int) -> float | None:
    before = os.sched_getaffinity(0)
    with suppress(OSError):
        os.sched_setaffinity(0, {processor})
    try:
        clock = _schedule("/proc/thread-self").last_ms
        return None if clock is None else clock - monotonic() * 1000
    finally:
        with suppress(OSError):
            os.sched_setaffinity(0, before)


_clocks = SchedulerClocks()


def look_at_process(pid: int, at_seconds: float) -> ProcessLook | None:
    """The process as the kernel shows it now, without stacks; None where there is no such process."""
    folder = f"/proc/{pid}"
    try:
        stat = read_stat(pid)
    except (OSError, ValueError):
        return None
    state = stat.state
    if state in "ZX":
        return ProcessLook(at_seconds, pid, state, stat.cpu_seconds)
    tracer = 0
    with suppress(OSError):
        tracer = int(read_status(pid).get("TracerPid", "0"))
    read_bytes, written_bytes = _io(folder)
    groups = find_folders(read_file(Path(f"{folder}/cgroup")))
    return ProcessLook(
        at_seconds,
        pid,
        state,
        stat.cpu_seconds,
        read_bytes=read_bytes,
        written_bytes=written_bytes,
        threads=_threads(pid, folder),
        frozen=frozen_by(groups) is not None,
        traced_by=describe_process(tracer) if tracer else "",
        quotas=read_quotas(find_processor_folders(groups)),
    )


def read_quotas(folders: Sequence[Path]) -> tuple[QuotaLook, ...]:
    """The quotas of those groups that have one."""
    found = []
    for folder in folders:
        limit, seen = read_processor_limit(folder), read_quota(folder)
        if limit is not None:
            file, processors = f"{folder}/{limit[0]}", limit[1]
            found.append(QuotaLook(file, processors, seen.periods, seen.throttled_periods, seen.seconds))
    return tuple(found)


def _threads(pid: int, folder: str) -> tuple[ThreadLook, ...]:
    try:
        names = sorted(os.listdir(f"{folder}/task"), key=int)
    except OSError:
        return ()
    tids = [pid, *(int(name) for name in names if int(name) != pid)][:_MOST_THREADS]
    return tuple(thread for tid in tids if (thread := _thread(pid, tid, f"{folder}/task/{tid}")))


def _thread(pid: int, tid: int, folder: str) -> ThreadLook | None:
    try:
        stat = read_stat(f"{pid}/task/{tid}")
    except (OSError, ValueError):
        return None
    schedule = _schedule(folder)
    call = read_system_call(pid, tid, folder)
    awaited: Awaited | None = None
    wakes_in_seconds: float | None = None
    if call is not None and stat.state in "SD":
        with suppress(OSError, ValueError):
            awaited = find_awaited(call)
            wakes_in_seconds = read_wake_up(call)
    ran: Reading[float] = Missing(MissingReason.NOT_SUPPORTED, f"{folder}/sched")
    clock = _clocks.read_ms(stat.processor) if schedule.last_ms else None
    if (
        clock is not None and schedule.last_ms
    ):  # 0 where it was moved to another processor and has not run since
        ran = 0.0 if stat.state == "R" else round(max(0.0, clock - schedule.last_ms) / 1000, 3)
    return ThreadLook(
        tid,
        stat.name,
        stat.state,
        stat.cpu_seconds if schedule.run_seconds is None else schedule.run_seconds,
        waits_in=read_wait_channel(folder.removeprefix("/proc/")),
        syscall=call.name if call else "",
        awaited=awaited,
        last_ran_seconds_ago=ran,
        wakes_in_seconds=wakes_in_seconds,
        switches=schedule.switches,
    )


def read_system_call(pid: int, tid: int, folder: str) -> Call | None:
    """The system call that a thread waits in; None where it runs, or it may not be seen."""
    try:
        words = read_text(f"{folder}/syscall").split()
    except OSError:
        return None
    if not words or not words[0].lstrip("-").isdecimal() or int(words[0]) < 0:
        return None
    number = int(words[0])
    arguments = tuple(int(word, 16) for word in words[1:7])
    return Call(pid, tid, _NAMES.get(number, f"system call {number}"), arguments)


def _schedule(folder: str) -> Schedule:
    run_seconds: float | None = None
    switches, last = 0, None
    with suppress(OSError, ValueError, IndexError):
        run_seconds, _, switches = read_schedule(folder.removeprefix("/proc/"))
    with suppress(OSError, ValueError):
        for line in read_text(f"{folder}/sched").splitlines():
            if line.startswith("se.exec_start"):
                last = float(line.rpartition(":")[2])
                break
    return Schedule(run_seconds, switches, last)


def _io(folder: str) -> tuple[Reading[int], Reading[int]]:
    try:
        pairs = (line.split(": ") for line in read_text(f"{folder}/io").splitlines())
        values = {name: int(value) for name, value in pairs}
        return values["rchar"], values["wchar"]
    except PermissionError:
        missing = Missing(MissingReason.NO_PERMISSION, f"{folder}/io")
    except (OSError, ValueError, KeyError) as error:
        missing = Missing(MissingReason.ERROR, str(error))
    return missing, missing
