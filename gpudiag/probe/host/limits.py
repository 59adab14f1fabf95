"""The limits of this process and its control group, and the free space on its file systems."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gpudiag.linux.cgroup import parse_groups
from gpudiag.linux.proc import read_text
from gpudiag.probe.sheet import ERROR, NOT_SUPPORTED, SOURCE_ABSENT, Absent, Sheet

_UNLIMITED = "unlimited"
_LIMIT_NAMES = (
    ("locked_memory_bytes", "Max locked memory"),
    ("open_files", "Max open files"),
    ("processes", "Max processes"),
)
# cgroup v1 writes the largest multiple of a page where there is no limit.
_V1_NO_LIMIT = 1 << 62

# Where caches of compiled kernels and of data sets go; each is looked at if it is set.
_CACHE_VARIABLES = ("TMPDIR", "XDG_CACHE_HOME", "TORCH_HOME", "TRITON_CACHE_DIR", "HF_HOME")
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - the mount itself is the subject
# On a simulated machine: a line per file system, `PATH TOTAL AVAILABLE FILES FILES_AVAILABLE rw|ro`.
SIMULATED_FILE = "run/gpudiag/filesystems"


def read_process_limits(root: str = "/") -> dict[str, Any]:
    """The soft limits of this process, from /proc/self/limits (proc(5)); None is unlimited."""
    text = read_text(os.path.join(root, "proc/self/limits"))
    sheet = Sheet()
    for field, name in _LIMIT_NAMES:
        sheet.read(field, parse_limit, text, name)
    return sheet.document()


def parse_limit(text: str, name: str) -> int | None:
    """The soft limit called `name`; None where it is unlimited. Raises Absent: there is no such line."""
    for line in text.splitlines():
        if line.startswith(name):
            soft = line[len(name) :].split()[0]
            return None if soft == _UNLIMITED else int(soft)
    raise Absent(ERROR, f"no line {name!r}")


def read_cgroup(root: str = "/") -> dict[str, Any]:
    """The control group's limits: the tightest from this process's group up to the root.

    Raises:
        Absent: no cgroup file system is readable.
    """
    version, paths = _hierarchy(root)
    sheet = Sheet()
    if version == 2:
        top = "sys/fs/cgroup"
        names = (("memory_limit_bytes", "memory.max"), ("processes_limit", "pids.max"))
        groups = {name: _upwards(root, top, paths[""]) for name in ("memory", "cpu", "pids")}
        sheet.read("processors_limit", _tightest, groups["cpu"], "cpu.max", parse_cpu_max)
        sheet.read("memory_used_bytes", lambda: int(_nearest(groups["memory"], "memory.current")))
    else:
        names = (("memory_limit_bytes", "memory.limit_in_bytes"), ("processes_limit", "pids.max"))
        groups = {
            name: _upwards(root, f"sys/fs/cgroup/{name}", paths.get(name, "/"))
            for name in ("memory", "cpu", "pids")
        }
        sheet.read("processors_limit", _quota_v1, groups["cpu"])
        sheet.read("memory_used_bytes", lambda: int(_nearest(groups["memory"], "memory.usage_in_bytes")))
    for field, name in names:
        sheet.read(field, _tightest, groups[name.split(".", 1)[0]], name, parse_maximum)
    sheet.values["path"] = paths.get("", paths.get("memory", "/"))
    return sheet.document()


def _hierarchy(root: str) -> tuple[int, dict[str, str]]:
    """The cgroup version in use, and this process's path by controller ("" in v2)."""
    paths = parse_groups(read_text(os.path.join(root, "proc/self/cgroup")))
    if os.path.exists(os.path.join(root, "sys/fs/cgroup/cgroup.controllers")):
        return 2, {"": paths.get("", "/")}
    if os.path.isdir(os.path.join(root, "sys/fs/cgroup/memory")):
        return 1, paths
    raise Absent(SOURCE_ABSENT, "no cgroup file system is mounted")


def _upwards(root: str, top: str, path: str) -> list[str]:
    """The visible directories of the group and its ancestors, innermost first; in a container perhaps one."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    candidates = ["/".join((top, *parts[:depth])) for depth in range(len(parts), -1, -1)]
    return [path for path in (os.path.join(root, one) for one in candidates) if os.path.isdir(path)]


def _tightest(groups: list[str], name: str, parse: Callable[[str], Any]) -> Any:
    """The smallest limit of the groups; None if none sets one. Raises Absent: no group has such a file."""
    texts = [
        read_text(os.path.join(group, name)) for group in groups if os.path.exists(os.path.join(group, name))
    ]
    if not texts:
        raise Absent(NOT_SUPPORTED, f"the control group has no {name}")
    limits = [limit for limit in map(parse, texts) if limit is not None]
    return min(limits) if limits else None


def _nearest(groups: list[str], name: str) -> str:
    for group in groups:
        if os.path.exists(os.path.join(group, name)):
            return read_text(os.path.join(group, name))
    raise Absent(NOT_SUPPORTED, f"the control group has no {name}")


def parse_maximum(text: str) -> int | None:
    """A cgroup's limit; None for `max` (v2) or a number near 2**63 (v1)."""
    word = text.strip()
    if word == "max" or int(word) >= _V1_NO_LIMIT:
        return None
    return int(word)


def parse_cpu_max(text: str) -> float | None:
    """Processors that cpu.max of cgroup v2 allows: quota divided by period; None for `max`."""
    quota, period = text.split()
    return None if quota == "max" else int(quota) / int(period)


def _quota_v1(groups: list[str]) -> float | None:
    """Processors that the tightest cgroup v1 quota allows; None where no group sets one (-1)."""
    quotas = []
    for group in groups:
        if os.path.exists(os.path.join(group, "cpu.cfs_quota_us")):
            quota = int(read_text(os.path.join(group, "cpu.cfs_quota_us")))
            period = int(read_text(os.path.join(group, "cpu.cfs_period_us")))
            quotas += [quota / period] if quota > 0 else []
    return min(quotas) if quotas else None


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
    """The bytes available in /dev/shm. Raises Absent: nothing under this root shows it."""
    if root == "/":
        shm = os.statvfs(_SHARED_MEMORY)
        return shm.f_bavail * shm.f_frsize
    for document in _simulated(root):
        if document["path"] == _SHARED_MEMORY:
            return int(document["available_bytes"])
    raise Absent(SOURCE_ABSENT, f"nothing under this root shows what is left in {_SHARED_MEMORY}")


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
