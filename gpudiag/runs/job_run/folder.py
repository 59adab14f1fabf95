"""The folder beside the verdict for dumps of the flight recorder, removed at the end if it is empty.

Where gpudiag was killed, the next start in that place removes it, once no process of the job is left.
"""

import os
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from gpudiag.errors import UsageError
from gpudiag.linux.proc import is_alive, list_environments

SUFFIX = ".files"


def default_name() -> str:
    """`gpudiag-run-HOST-TIME-PID`, of the verdict and of its folder."""
    return f"{_prefix()}{datetime.now():%Y%m%d-%H%M%S}-{os.getpid()}"


def _prefix() -> str:
    return f"gpudiag-run-{socket.gethostname().partition('.')[0]}-"


def make_folder(folder: Path) -> bool:
    """Whether the folder is this run's to remove: new, or left empty. Raises UsageError: not made."""
    try:
        folder.mkdir()
    except FileExistsError:
        return is_empty(folder)
    except OSError as error:
        raise UsageError(
            f"cannot make {folder}: {error.strerror}", hint="name another place: --verdict FILE"
        ) from error
    return True


def is_empty(folder: Path) -> bool:
    """Whether nothing was written to it; False where it cannot be read."""
    try:
        return not any(folder.iterdir())
    except OSError:
        return False


def remove_if_empty(folder: Path) -> None:
    """Remove the folder, unless something was written to it."""
    with suppress(OSError):
        folder.rmdir()


def remove_left_folders(place: Path) -> None:
    """Remove the empty folders of runs on this machine that were killed, and whose jobs have ended."""
    left = list(_left_folders(place))
    used = _used_by_processes(left) if left else frozenset()
    for folder in left:
        if folder not in used:
            remove_if_empty(folder)


def _left_folders(place: Path) -> Iterator[Path]:
    """Empty folders of our own, by the default name, whose gpudiag is gone."""
    name = re.compile(re.escape(_prefix()) + r"\d{8}-\d{6}-(\d+)" + re.escape(SUFFIX))
    with suppress(OSError):
        for folder in place.iterdir():
            found = name.fullmatch(folder.name)
            if found is None or is_alive(int(found[1])):
                continue
            with suppress(OSError):
                if folder.lstat().st_uid == os.geteuid() and not folder.is_symlink() and is_empty(folder):
                    yield folder


def _used_by_processes(folders: list[Path]) -> frozenset[Path]:
    """Those that a process's environment names; other users' are unreadable."""
    words = {folder: os.fsencode(f"{folder}/") for folder in folders}
    found = list_environments()
    return frozenset(folder for _, text in found for folder, word in words.items() if word in text)
