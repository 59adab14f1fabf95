"""Room on the file systems that a training job writes to, and in shared memory."""

from __future__ import annotations

import os

from gpudiag.probe.sheet import ERROR, SOURCE_ABSENT, Absent, Sheet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

# Where caches of compiled kernels and of data sets go; each is looked at if it is set.
_CACHE_VARIABLES = ("TMPDIR", "XDG_CACHE_HOME", "TORCH_HOME", "TRITON_CACHE_DIR", "HF_HOME")
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - the mount itself is the subject
# On a simulated machine: a line per file system, `PATH TOTAL AVAILABLE FILES FILES_AVAILABLE rw|ro`.
SIMULATED_FILE = "run/gpudiag/filesystems"


def read_filesystems(root: str, environment: Mapping[str, str]) -> list[dict[str, Any]]:
    """One sheet's document per file system behind the paths that jobs write to, each file system once."""
    if root != "/":
        return [document for document in _simulated(root) if document["path"] != _SHARED_MEMORY]
    found: dict[int, dict[str, Any]] = {}
    for path in _paths(environment):
        try:
            device = os.stat(path).st_dev
        except OSError:
            continue
        if device not in found:
            found[device] = _filesystem(path)
    return list(found.values())


def read_shared_memory_available(root: str = "/") -> int:
    """Bytes that are left in /dev/shm.

    Raises:
        Absent: it is not mounted, or not told.
    """
    if root == "/":
        shm = os.statvfs(_SHARED_MEMORY)
        return shm.f_bavail * shm.f_frsize
    for document in _simulated(root):
        if document["path"] == _SHARED_MEMORY:
            return int(document["available_bytes"])
    raise Absent(SOURCE_ABSENT, f"nothing under this root says what is left in {_SHARED_MEMORY}")


def _paths(environment: Mapping[str, str]) -> Iterator[str]:
    yield "/"
    yield "/tmp"  # noqa: S108 - a place to look at, not to write to
    yield os.getcwd()
    yield os.path.expanduser("~")
    for variable in _CACHE_VARIABLES:
        if environment.get(variable):
            yield environment[variable]


def _filesystem(path: str) -> dict[str, Any]:
    sheet = Sheet()
    sheet.values["path"] = path
    fields = ("total_bytes", "available_bytes", "files_total", "files_available", "read_only")
    sheet.read_together(fields, _numbers, path)
    return sheet.document()


def _numbers(path: str) -> tuple[int, int, int, int, bool]:
    room = os.statvfs(path)
    read_only = bool(room.f_flag & os.ST_RDONLY)
    size = room.f_frsize
    return room.f_blocks * size, room.f_bavail * size, room.f_files, room.f_favail, read_only


def _simulated(root: str) -> Iterator[dict[str, Any]]:
    with open(os.path.join(root, SIMULATED_FILE)) as file:
        rows = [line.split() for line in file]
    for row in rows:
        if len(row) != 6:
            raise Absent(ERROR, f"{SIMULATED_FILE} has a line of {len(row)} words")
        total, available, files, files_available = map(int, row[1:5])
        yield {
            "path": row[0],
            "total_bytes": total,
            "available_bytes": available,
            "files_total": files,
            "files_available": files_available,
            "read_only": row[5] == "ro",
        }
