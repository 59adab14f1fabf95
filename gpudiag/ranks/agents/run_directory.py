"""The one directory of a run: result files, what the ranks wrote to stderr, their stacks.

It lies in this user's folder under $XDG_RUNTIME_DIR, else the temporary directory. Its owner holds a lock in
it while it lives: so the next start finds and removes what was left behind.
"""

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path

from gpudiag.errors import LaunchError
from gpudiag.folders import temporary_folder

_OWNER_LOCK = "owner.lock"
_PREFIX = "run-"
_UNFINISHED_PREFIX = ".new-"
_UNFINISHED_SECONDS = 60.0  # creating a directory takes milliseconds
# What four ranks write on a good run is tens of KiB; a rank that cannot write dies without a message.
_ROOM_BYTES = 1 << 20


def runtime_directory() -> Path:
    """This user's folder for run directories and sockets, created if needed, with access for this user only.

    Raises:
        LaunchError: it cannot be created, or another user owns it or may write to it.
        GpudiagError: there is no folder for temporary files.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime and os.access(runtime, os.W_OK | os.X_OK):
        base = Path(runtime) / "gpudiag"
    else:
        base = temporary_folder() / f"gpudiag-{os.getuid()}"
    try:
        base.mkdir(mode=0o700, exist_ok=True)
        status = base.lstat()
    except OSError as error:
        raise LaunchError(
            f"cannot make {base}: {error.strerror}", hint="set TMPDIR to a writable folder"
        ) from None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise LaunchError(
            f"{base} is writable for other users, or is no folder",
            hint="remove it, or set TMPDIR to another folder",
        )
    return base


class RunDirectory:
    """One run's directory; use it as a context manager, which removes it at the end."""

    def __init__(self, base: Path, label: str = "") -> None:
        """Remove what dead runs left behind under `base`, then make and lock a new directory.

        Its name starts with `run-` and the label, by which other processes may look for it.

        Raises:
            LaunchError: it cannot be made, or there is no room in it.
        """
        remove_stale_directories(base)
        _require_room(base)
        self._lock, self.path = _create(base, label)

    def __enter__(self) -> "RunDirectory":
        """The directory itself."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Remove the directory and release its lock."""
        self.remove()

    def remove(self) -> None:
        """Remove the directory with all that is in it; a second call does nothing."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def events_path(self, rank: int) -> Path:
        """Where a rank appends its events and its result, as JSON lines."""
        return self.path / f"rank{rank}.events"

    def stderr_path(self, rank: int) -> Path:
        """Where a rank's standard output and standard error go."""
        return self.path / f"rank{rank}.stderr"


def remove_stale_directories(base: Path) -> None:
    """Remove every run directory under `base` whose owner is dead."""
    for path in base.iterdir():
        if path.name.startswith(_PREFIX):
            _remove_if_unowned(path)
        elif path.name.startswith(_UNFINISHED_PREFIX) and _age_seconds(path) > _UNFINISHED_SECONDS:
            shutil.rmtree(path, ignore_errors=True)


def _require_room(base: Path) -> None:
    """Raise LaunchError if the file system of `base` is full, before a rank fails for that."""
    space = os.statvfs(base)
    if space.f_blocks and space.f_bavail * space.f_frsize < _ROOM_BYTES:
        raise LaunchError(
            f"{base} has {space.f_bavail * space.f_frsize // 1024} KiB left, too little for the ranks' files",
            hint="set TMPDIR (or XDG_RUNTIME_DIR) to a folder with room",
        )


def _create(base: Path, label: str) -> tuple[int, Path]:
    """The lock's descriptor and the path; the directory gets its name only once it is locked."""
    try:
        unfinished = Path(tempfile.mkdtemp(prefix=_UNFINISHED_PREFIX, dir=base))
        lock = os.open(unfinished / _OWNER_LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        suffix = unfinished.name.removeprefix(_UNFINISHED_PREFIX)
        path = base / (f"{_PREFIX}{label}-{suffix}" if label else _PREFIX + suffix)
        unfinished.rename(path)
    except OSError as error:
        raise LaunchError(
            f"cannot make a folder in {base}: {error.strerror}", hint="is the disk full?"
        ) from None
    return lock, path


def _remove_if_unowned(path: Path) -> None:
    try:
        lock = os.open(path / _OWNER_LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:  # its owner is removing it, or has removed it
        shutil.rmtree(path, ignore_errors=True)
        return
    try:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(lock)


def _age_seconds(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0
