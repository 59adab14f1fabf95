"""The programs of a simulated machine: found by their environment, killed when the machine is gone.

A program in a hung NVML call ignores every signal but SIGKILL, and nvidia-smi outlives a GPUtil that
was killed. So programs must end with the machine: a guardian process waits for the end of the session's
process, however it ends, and kills what is left.
"""

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from gpudiag.ranks.process import DEAD_STATES, kill, name_process, read_process

# A killed program may have started another one just before: look again until nothing is found.
_ROUNDS = 20
_ROUND_SECONDS = 0.05


def kill_programs(folder: Path) -> None:
    """Kill every program of this user that was started on the machine whose files are in `folder`."""
    for _ in range(_ROUNDS):
        found = find_programs(folder)
        for pid in found:
            kill(pid)
        if not found:
            return
        time.sleep(_ROUND_SECONDS)


def find_programs(folder: Path) -> list[int]:
    """The pids of the programs that run on the machine, other than this process."""
    mark = f"\0GPUDIAG_HOST_ROOT={folder}/root\0".encode()
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal() and int(name) != os.getpid() and mark in _read_environment(name):
            process = read_process(int(name))
            if process is not None and process.state not in DEAD_STATES:
                found.append(process.pid)
    return found


def _read_environment(pid: str) -> bytes:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return b"\0" + file.read()
    except OSError:  # another user's, or gone
        return b""


@contextlib.contextmanager
def guarded(folder: Path) -> Iterator[None]:
    """Within the context, a guardian process cleans up the machine if this process dies."""
    reader, writer = os.pipe()
    guardian = os.fork()
    if guardian == 0:
        os.close(writer)
        _stand_guard(reader, folder)
    os.close(reader)
    try:
        yield
    finally:
        kill_programs(folder)
        with contextlib.suppress(BrokenPipeError):  # the guardian was killed
            os.write(writer, b"\n")
        os.close(writer)
        os.waitpid(guardian, 0)


def _stand_guard(reader: int, folder: Path) -> None:
    """The guardian: wait until the session writes a byte or dies; if it dies, clean up. Never returns."""
    try:
        os.setsid()  # away from the terminal and its signals
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        nowhere = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):  # a reader of our output must not wait for the guardian
            os.dup2(nowhere, standard)
        name_process("gpudiag-guard")
        if os.read(reader, 1) == b"":
            kill_programs(folder)
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os._exit(0)
