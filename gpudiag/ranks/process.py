"""What /proc says about one process, and what a process sets about itself. Linux only."""

import contextlib
import ctypes
import os
import signal
from dataclasses import dataclass

from gpudiag.linux.proc import DEAD_STATES, read_stat

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PR_SET_NAME = 15


@dataclass(frozen=True, slots=True)
class ProcessState:
    """One process at one moment: its state letter as in ps, its parent, the CPU time it has used."""

    pid: int
    state: str  # R running, S sleeping, D uninterruptible, T stopped, t traced, Z dead
    parent_pid: int
    cpu_seconds: float
    start_ticks: int  # since boot; with the pid it identifies a process even when pids are reused


@dataclass(frozen=True, slots=True)
class Machine:
    """What processes must have in common to compare their clocks, and to know each other by pid."""

    clock: str  # the same for processes with the same CLOCK_MONOTONIC
    process_table: str  # the same for processes that see the same pids
    network: str = ""  # the same for processes that share network interfaces


def read_machine() -> Machine:
    """Where this process runs: the boot id, and the time, pid and network namespaces."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    return Machine(*(f"{boot} {_namespace(kind)}" for kind in ("time", "pid", "net")))


def _namespace(kind: str) -> str:
    try:
        return os.readlink(f"/proc/self/ns/{kind}")
    except OSError:  # this kernel has no namespaces of that kind: all processes share one
        return ""


def read_process(pid: int) -> ProcessState | None:
    """The process as /proc shows it; None if there is no such process."""
    try:
        stat = read_stat(pid)
    except OSError:  # it ended, perhaps between open and read
        return None
    return ProcessState(pid, stat.state, stat.parent_pid, stat.cpu_seconds, stat.start_ticks)


def has_open(pid: int, prefix: str) -> bool:
    """Whether the process has a file open whose path starts with `prefix`; False if we may not look."""
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):  # closed since it was listed
                if os.readlink(f"/proc/{pid}/fd/{name}").startswith(prefix):
                    return True
    return False


def read_wait_channel(pid: int) -> str | None:
    """The kernel function in which the main thread waits; None if it does not wait, or we may not look."""
    try:
        with open(f"/proc/{pid}/wchan") as file:
            name = file.read().strip()
    except OSError:
        return None
    return name if name not in ("", "0") else None


def is_alive(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    process = read_process(pid)
    return process is not None and process.state not in DEAD_STATES


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent ends; end it now if the parent is already gone.

    The signal is bound to the parent's thread that started this process, not to the parent as a
    whole (prctl(2)); so the parent must start such a process from a thread that outlives it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGKILL)


def name_process(name: str) -> None:
    """Show the process as `name` (at most 15 bytes) in ps and top."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def kill(pid: int) -> None:
    """Send SIGKILL; do nothing if the process is already gone."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def uses_gpu(pid: int) -> bool:
    """Whether a process has a GPU's device node open; False if that cannot be seen."""
    folder = f"/proc/{pid}/fd"
    try:
        targets = [os.readlink(f"{folder}/{name}") for name in os.listdir(folder)]
    except OSError:  # it is gone, or another user's
        return False
    return any(target.startswith("/dev/nvidia") for target in targets)


def kill_group(group: int) -> None:
    """Send SIGKILL to every process of a process group; do nothing if the group is already empty."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return
