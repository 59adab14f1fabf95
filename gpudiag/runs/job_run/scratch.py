"""The files by which a job's processes answer gpudiag: pipes of flight recorders, exceptions of ranks.

They lie in memory, at a place that every machine and container has, and go with the job; where gpudiag was
killed, the next start removes them, once no process of that job is left.
"""

import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from gpudiag.linux.proc import list_environments

# The names are of a random number, and only files of our own user are removed.
PLACE = Path("/dev/shm")  # noqa: S108
_NAME = "gpudiag-run-"
_OURS = re.compile(rf"{_NAME}([0-9a-f]{{16}})-.+")
_OLD_SECONDS = 60.0  # a younger file may be of a run that is ending


def find_prefix(run_id: str, place: Path = PLACE) -> str | None:
    """What the names of this run's files begin with; None where no pipe can be made there."""
    prefix = f"{place}/{_NAME}{run_id}-"
    probe = f"{prefix}probe"
    try:
        os.mkfifo(probe, 0o600)
        os.unlink(probe)
    except OSError:
        return None
    return prefix


def remove_files(prefix: str) -> None:
    """Remove the files of one run."""
    place, _, name = prefix.rpartition("/")
    for path in _files(Path(place)):
        if path.name.startswith(name):
            with suppress(OSError):
                path.unlink()


def remove_left_files(variable: str, place: Path = PLACE) -> None:
    """Remove the files of killed runs; `variable` has the run's id in its processes' environment."""
    left: dict[str, list[Path]] = {}
    for path in _files(place):
        with suppress(OSError):
            if path.lstat().st_mtime < time.time() - _OLD_SECONDS:
                left.setdefault(path.name.removeprefix(_NAME)[:16], []).append(path)
    if not left:
        return
    living = {
        run_id
        for run_id in left
        if any(
            f"{variable}={run_id}".encode() in environment.split(b"\0")
            for _, environment in list_environments()
        )
    }
    for run_id in left.keys() - living:
        for path in left[run_id]:
            with suppress(OSError):
                path.unlink()


def _files(place: Path) -> Iterator[Path]:
    """Files and pipes of our own user that have such a name."""
    with suppress(OSError):
        for path in list(place.iterdir()):
            if _OURS.fullmatch(path.name) is None:
                continue
            with suppress(OSError):
                about = path.lstat()
                if about.st_uid == os.geteuid() and (
                    stat.S_ISREG(about.st_mode) or stat.S_ISFIFO(about.st_mode)
                ):
                    yield path
