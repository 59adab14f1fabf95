"""The service's own state folder: one per machine, real or simulated, locked by one service at a time."""

import fcntl
import os
import re
import threading
from dataclasses import dataclass
from pathlib import Path

from gpudiag.errors import UsageError
from gpudiag.probe.start import SIMULATED

_FOLDER, _SIMULATED_FOLDER = "service", "service-simulated"
_LOCK = "lock"
_MAX_NAME_CHARACTERS = 80
_WAIT_SECONDS = 3.0  # enough for a disk that works; a hung one is not waited for


def service_folder(state: Path) -> Path:
    """The state folder of this machine's service; simulated machines have their own."""
    simulated = os.environ.get(SIMULATED)
    if not simulated:
        return state / _FOLDER
    return state / _SIMULATED_FOLDER / re.sub(r"[^\w.+-]", "-", simulated)[:_MAX_NAME_CHARACTERS]


@dataclass
class _Held:
    """The outcome of locking, set by the thread that asks for the lock."""

    descriptor: int | None = None
    holder: str | None = None


def hold_folder(folder: Path, address: str) -> None:
    """Lock the folder for this process's life; whoever writes there reports one that cannot be written.

    Raises:
        UsageError: another service holds it.
    """
    held = _Held()
    # A thread, because the disk may hang, and then the service goes on without the lock.
    asking = threading.Thread(target=_ask, args=(folder, address, held), daemon=True)
    asking.start()
    asking.join(_WAIT_SECONDS)
    if held.holder is not None:
        raise UsageError(
            f"another gpudiag serve remembers in {folder}: {held.holder}",
            hint="use that one, or give this one a folder of its own: GPUDIAG_STATE_DIR=DIR gpudiag serve ...",
        )


def _ask(folder: Path, address: str, held: _Held) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        said = os.read(descriptor, 200).decode(errors="replace").strip()
        held.holder = said or "it has just started"
        os.close(descriptor)
        return
    except OSError:  # a file system without locks
        os.close(descriptor)
        return
    held.descriptor = (
        descriptor  # never closed: the kernel releases the lock when the process ends, however it ends
    )
    with open(descriptor, "w", closefd=False) as file:
        file.truncate()
        file.write(f"process {os.getpid()}, {address}\n")
