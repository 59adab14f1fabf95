"""What gpudiag itself was refused: processes, threads, memory, open files, /proc.

It is never a fault of the machine. A limit (`ulimit`, the control group of a container) refuses at any
moment: the first fork, a thread in a child, the loading of a library. `shortage_of` recognises the refusal in
an exception, `shortage_in` in the last words of another program. Both name the limit, so that the reader
knows what to raise.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from gpudiag.errors import ShortageError
from gpudiag.reference.shortages import NO_THREAD, find_shortage

if TYPE_CHECKING:
    from types import TracebackType

_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
_STARTS_PROCESSES = {"fork", "forkpty", "fork_exec", "_fork_exec", "posix_spawn", "posix_spawnp"}
_PIDS_FILES = ("/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/pids/pids.max")
_UNLIMITED_MEMORY = 1 << 50  # a limit above this one refuses nothing


def shortage_of(error: BaseException) -> ShortageError | None:
    """The shortage that this exception is the sign of; None where it is something else."""
    if isinstance(error, ShortageError):
        return error
    if isinstance(error, MemoryError):
        return lack_of_memory()
    if isinstance(error, RuntimeError) and NO_THREAD in str(error):
        return _lack_of_threads()
    if isinstance(error, ImportError):  # a library of a package that could not be loaded
        return shortage_in(str(error))
    if not isinstance(error, OSError):
        return None
    if error.errno in _NO_DESCRIPTORS:
        return _lack_of_files(error.errno)
    if error.errno == errno.ENOMEM:
        return lack_of_memory()
    if error.errno == errno.EAGAIN and _starts_processes(error.__traceback__):
        return lack_of_processes()
    if error.errno is None:  # ctypes gives the loader's words without a number
        return shortage_in(str(error))
    return None


def shortage_in(words: str) -> ShortageError | None:
    """The shortage that the last lines of a program or of the loader report; None where they report none."""
    kind = find_shortage(words)
    if kind is None:
        return None
    if kind == "files":
        return _lack_of_files(errno.EMFILE)
    return lack_of_memory() if kind == "memory" else _lack_of_threads()


def lack_of_processes() -> ShortageError:
    """The error where no process may be started."""
    return ShortageError(
        f"no more processes may be started here: {_limits_of_processes()}",
        hint=(
            "raise it (`ulimit -u`; in a container --pids-limit), or end"
            " processes: `ps -eLf | wc -l` counts them"
        ),
    )


def lack_of_memory() -> ShortageError:
    """The error where gpudiag, and not a GPU, gets no more memory."""
    limit = memory_limit_bytes()
    if limit is not None:
        words = f"gpudiag gets no more memory: the limit of its address space is {limit >> 10} kB (ulimit -v)"
        return ShortageError(words, hint="raise it, for example: ulimit -v unlimited")
    return ShortageError(
        "gpudiag gets no more memory from this machine, or from its container",
        hint="see `free -m`, and memory.max of the container's control group",
    )


def lack_of_proc() -> ShortageError:
    """The error where /proc is not mounted."""
    return ShortageError(
        "/proc is not mounted here, and gpudiag reads processes and the driver's state there",
        hint="mount it: `mount -t proc proc /proc`; for a chroot, `mount --rbind /proc ROOT/proc`",
    )


def memory_limit_bytes() -> int | None:
    """The limit of this process's address space; None where there is none."""
    import resource

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return limit if 0 <= limit < _UNLIMITED_MEMORY else None


def _lack_of_threads() -> ShortageError:
    """The kernel refuses a thread for want of memory for its stack, or as one process too many."""
    return lack_of_processes() if memory_limit_bytes() is None else lack_of_memory()


def _lack_of_files(number: int) -> ShortageError:
    import resource

    if number == errno.ENFILE:
        words = "this machine has reached its limit of open files"
        return ShortageError(words, hint="see /proc/sys/fs/file-nr and file-max")
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    words = f"the limit of open files is too low: this process may have {limit} open (ulimit -n)"
    return ShortageError(words, hint="raise it, for example: ulimit -n 4096")


def _limits_of_processes() -> str:
    import resource

    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    known = [f"this user's limit is {limit} processes and threads (ulimit -u)"] if limit >= 0 else []
    for path in _PIDS_FILES:
        try:
            with open(path) as file:
                allowed = file.read().strip()
        except OSError:
            continue
        if allowed.isdecimal():
            known.append(f"the container's is {allowed} ({os.path.basename(path)} of its control group)")
            break
    return ", ".join(known) or "the kernel refused one (pid_max, or a limit of a control group)"


def _starts_processes(trace: TracebackType | None) -> bool:
    """Whether the function that was refused is one that starts a process."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and not _STARTS_PROCESSES.isdisjoint(trace.tb_frame.f_code.co_names)
