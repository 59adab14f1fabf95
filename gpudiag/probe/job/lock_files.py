"""The lock file for which a thread sleeps and asks again: filelock, fasteners, portalocker, a user's loop.

Such a wait makes no system call that names the file: the library opens it, is refused, and sleeps. The path
is a variable of its frames, or stands in one of the user's; /proc shows who has the file, or that nobody has
it.
"""

import os
import re
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

from gpudiag.linux.proc import list_pids, read_text
from gpudiag.model.job import REMOVABLE, Awaited
from gpudiag.model.untrusted_text import escape_controls, mask_text
from gpudiag.probe.job.memory import Memory
from gpudiag.probe.job.proc import describe_process
from gpudiag.probe.job.py_spy import RawFrame, Variable
from gpudiag.probe.job.wait_targets import find_file_system, find_lock_holders
from gpudiag.reference.waits import is_library

_LIBRARIES = re.compile(r"/(filelock|fasteners|portalocker|lockfile|zc/lockfile|oslo_concurrency)/")
_IN_LIBRARIES = ("lock_filename", "canonical_path", "lock_file", "_lock_file", "filename", "path", "lockfile")
_LOCK_NAME = re.compile(r"(\.lock|\.lck|_lock|\.lockfile)$", re.IGNORECASE)
_MOST_FRAMES = 8
_MOST_DESCRIPTORS = 512
_OWNER_BYTES = 256
_LONGEST_PATH = 4096


def find_lock_file(pid: int, frames: Sequence[RawFrame]) -> Awaited | None:
    """The lock file that a thread of a process sleeps for, with who holds it; None where nothing names one.

    Raises:
        OSError: the process is gone, or may not be read.
    """
    inner = list(frames[:_MOST_FRAMES])
    in_library = [frame for frame in inner if _LIBRARIES.search(frame.file)]
    path = next(_named_by(pid, in_library), None) or (_locked_by_others(pid) if in_library else None)
    if path is None:
        own = next((frame for frame in inner if not is_library(frame.file)), None)
        path = next(_in_users_frame(pid, own), None) if own is not None else None
    return None if path is None else _describe(pid, path, keeps_open=bool(in_library))


def _named_by(pid: int, frames: Sequence[RawFrame]) -> Iterator[str]:
    for name in _IN_LIBRARIES:
        for frame in frames:
            for one in frame.variables:
                if one.name == name and (path := _as_path(pid, one)) and _exists(pid, path):
                    yield path


def _in_users_frame(pid: int, frame: RawFrame) -> Iterator[str]:
    """The paths in a frame's variables that are lock files, or have one beside them."""
    for one in frame.variables:
        path = _as_path(pid, one)
        if path is None:
            continue
        if _LOCK_NAME.search(path) and _exists(pid, path):
            yield path
        elif _exists(pid, f"{path}.lock"):
            yield f"{path}.lock"


def _as_path(pid: int, variable: Variable) -> str | None:
    """The path that a variable holds, as the process sees it.

    A long one is read from the process's memory.
    """
    text = variable.value
    if len(text) < 3 or text[0] not in "\"'":
        return None
    path = (
        text[1:-1]
        if text[-1] == text[0]
        else _read_whole(pid, variable.address, text[1:].removesuffix("..."))
    )
    if path is None or ("/" not in path and not _LOCK_NAME.search(path)):
        return None
    return (
        path
        if path.startswith("/")
        else os.path.normpath(os.path.join(os.readlink(f"/proc/{pid}/cwd"), path))
    )


def _read_whole(pid: int, address: int, beginning: str) -> str | None:
    """A str of ASCII in a process's memory that begins so, read whole.

    Its length is the third word, and its text follows its header (CPython 3.10 to 3.14).
    """
    memory = Memory.open(pid)
    try:
        data = memory.read(address, 64 + _LONGEST_PATH)
    finally:
        memory.close()
    length = int.from_bytes(data[16:24], "little") if len(data) > 64 else 0
    place = data.find(beginning[:32].encode(errors="replace"), 32, 128)
    if place < 0 or not len(beginning) <= length <= _LONGEST_PATH:
        return None
    return data[place : place + length].decode("ascii", errors="ignore")


def _exists(pid: int, path: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(f"/proc/{pid}/root{path}").st_mode)
    except (OSError, ValueError):
        return False


def _locked_by_others(pid: int) -> str | None:
    """The file that a process has open and another one has locked."""
    folder = f"/proc/{pid}/fd"
    for number in sorted(os.listdir(folder), key=int)[:_MOST_DESCRIPTORS]:
        with suppress(OSError):
            target = os.readlink(f"{folder}/{number}")
            if (
                target.startswith("/")
                and not target.startswith("/dev/")
                and find_lock_holders(f"{folder}/{number}", pid)
            ):
                return target
    return None


def _describe(pid: int, path: str, *, keeps_open: bool) -> Awaited:
    """The file with its holder; `keeps_open`: whoever holds it has it open, as libraries do."""
    seen = os.stat(f"/proc/{pid}/root{path}")
    shown = escape_controls(mask_text(path))
    holders = find_lock_holders(f"/proc/{pid}/root{path}", pid)
    if holders:
        held = f"held by {', '.join(describe_process(one) for one in holders[:2])}"
        return Awaited("lock file", shown, held, tuple(holders))
    openers = [one for one in _who_has_open(seen.st_dev, seen.st_ino) if one != pid]
    if openers:
        return Awaited("lock file", shown, f"{describe_process(openers[0])} has it open")
    system = find_file_system(pid, path)
    age = _in_words(max(0.0, time.time() - seen.st_mtime))
    named = _named_owner(pid, path)
    if named is not None and os.path.exists(f"/proc/{named}"):
        return Awaited(
            "lock file",
            shown,
            f"it names {describe_process(named)}, which does not have it open; made {age} ago",
        )
    far = f", {system}" if system.startswith("nfs") else ""
    if named is not None:
        return Awaited(
            "lock file", shown, f"{REMOVABLE}: pid {named}, which it names, has ended; made {age} ago{far}"
        )
    gone = f"{REMOVABLE}: " if keeps_open else ""
    return Awaited("lock file", shown, f"{gone}no process of this machine has it open; made {age} ago{far}")


def _who_has_open(device: int, inode: int) -> list[int]:
    found = []
    for pid in list_pids():
        with suppress(OSError):
            for number in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    seen = os.stat(f"/proc/{pid}/fd/{number}")
                    if (seen.st_dev, seen.st_ino) == (device, inode):
                        found.append(pid)
                        break
    return found


def _named_owner(pid: int, path: str) -> int | None:
    """The process whose number the file begins with, as many programs write it."""
    with suppress(OSError, ValueError):
        words = read_text(f"/proc/{pid}/root{path}")[:_OWNER_BYTES].split()
        if words and words[0].isdecimal() and 1 < int(words[0]) < 1 << 22:
            return int(words[0])
    return None


def _in_words(seconds: float) -> str:
    if seconds < 180:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
