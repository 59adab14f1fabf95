"""Signals to processes of this machine: only to the one shown, never to another that has got its number."""

import os
import signal
from contextlib import suppress

from gpudiag.linux.proc import CLOCK_TICKS, read_stat, read_text
from gpudiag.model.device import GpuProcess
from gpudiag.model.reading import Missing

# What is offered, with what it does to a training job.
SIGNALS = {
    signal.SIGTERM: "ask it to end",
    signal.SIGINT: "as Ctrl-C",
    signal.SIGHUP: "hang up",
    signal.SIGSTOP: "stop it until SIGCONT",
    signal.SIGCONT: "continue after SIGSTOP",
    signal.SIGKILL: "end it now, without saving anything",
}
_APART_SECONDS = 1.5  # of two readings of one start: the boot time is kept in whole seconds


def send_signal(
    pid: int, number: signal.Signals, process: GpuProcess | None, child: int | None = None
) -> str:
    """What came of it, in words.

    `process` is what was shown under that pid, for a launcher `child` is one that it started.
    """
    if process is not None and not process.visible:
        return f"pid {pid} is outside this container: send the signal on the host"
    try:
        descriptor = os.pidfd_open(pid)
    except OSError as error:
        return f"pid {pid}: {'it has ended' if isinstance(error, ProcessLookupError) else error.strerror}"
    try:
        is_same = _has_started(pid, child) if process is None else _is_the_same(pid, process)
        if not is_same:
            return f"pid {pid} is another process by now: nothing was sent"
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return f"pid {pid} has ended"
    except PermissionError:
        return f"pid {pid} is another user's: only its owner or root may send it a signal"
    except OSError as error:
        return f"pid {pid}: {error.strerror}"
    finally:
        os.close(descriptor)
    return f"{number.name} was sent to pid {pid}"


def _is_the_same(pid: int, process: GpuProcess) -> bool:
    """Whether the process that has the pid now was started when the one that was shown was."""
    if isinstance(process.started_at, Missing):
        return False
    with suppress(OSError, ValueError, IndexError):
        boot = next(line for line in read_text("/proc/stat").splitlines() if line.startswith("btime "))
        started_at = int(boot.split()[1]) + read_stat(pid).start_ticks / CLOCK_TICKS
        return abs(started_at - process.started_at.timestamp()) < _APART_SECONDS
    return False


def _has_started(pid: int, child: int | None) -> bool:
    """Whether the process is a parent of that child, or a parent of its parents."""
    with suppress(OSError, ValueError, IndexError):
        while child is not None and child > 1:
            child = read_stat(child).parent_pid
            if child == pid:
                return True
    return False
