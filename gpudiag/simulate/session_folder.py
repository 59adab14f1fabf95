"""The folder of a simulated machine: made for one session, removed with it, or by the next one.

A session holds a lock on a file of its folder for as long as it lives. The kernel drops the lock
when the process dies, however it dies: a folder whose lock is free belongs to nobody any more.
"""

import contextlib
import fcntl
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from gpudiag.errors import UsageError
from gpudiag.simulate.programs import kill_programs

_LOCK_NAME = "lock"
_PREFIX = "machine-"
_UNFINISHED_PREFIX = ".new-"
# A folder is complete within milliseconds; one that is not after this long was abandoned.
_UNFINISHED_SECONDS = 600.0


@contextlib.contextmanager
def hold_folder() -> Iterator[Path]:
    """A fresh folder for one session; it is gone at the end. Folders of dead sessions go first.

    Raises:
        UsageError: there is no folder that programs can be started from.
    """
    parent = _parent_folder()
    remove_dead_folders(parent)
    name = f"{os.getpid()}-{secrets.token_hex(4)}"
    unfinished = parent / f"{_UNFINISHED_PREFIX}{name}"
    folder = parent / f"{_PREFIX}{name}"
    unfinished.mkdir(mode=0o700)
    lock = os.open(unfinished / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Only under its final name is a folder looked at by others, and then the lock is held.
        unfinished.rename(folder)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def remove_dead_folders(parent: Path) -> None:
    """Remove the folders whose session is dead, and kill what still runs there; what cannot be is left."""
    for folder in parent.iterdir():
        if folder.name.startswith(_PREFIX) and _is_dead(folder):
            kill_programs(folder)
            shutil.rmtree(folder, ignore_errors=True)
        elif folder.name.startswith(_UNFINISHED_PREFIX):
            with contextlib.suppress(OSError):
                if time.time() - folder.stat().st_mtime > _UNFINISHED_SECONDS:
                    shutil.rmtree(folder, ignore_errors=True)


def _is_dead(folder: Path) -> bool:
    """Whether nobody holds the folder's lock."""
    try:
        lock = os.open(folder / _LOCK_NAME, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(lock)
    return True


def _parent_folder() -> Path:
    """Where this user's sessions have their folders: a place that libraries may be loaded from.

    Raises:
        UsageError: each place is not this user's own, not writable, or mounted noexec.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    places = (
        Path(tempfile.gettempdir()) / f"gpudiag-simulate-{os.getuid()}",
        cache / "gpudiag" / "simulate",
    )
    for place in places:
        with contextlib.suppress(OSError):
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = place.lstat()
            # A folder that somebody else can write to could be given another library.
            own = status.st_uid == os.getuid() and not status.st_mode & 0o022 and not place.is_symlink()
            may_execute = not os.statvfs(place).f_flag & os.ST_NOEXEC
            if own and may_execute and os.access(place, os.W_OK) and ":" not in str(place):
                return place
    raise UsageError(
        f"no folder for a simulated machine: tried {' and '.join(map(str, places))}",
        hint="set TMPDIR to a folder of your own that is not mounted noexec",
    )
