"""What a run leaves on the disk, and how a service is told from one that died."""

import contextlib
import os
from pathlib import Path

from gpudiag.ranks.process import read_process

_MAX_BYTES = 32 << 20


def read_file(path: Path) -> bytes | None:
    """What the file holds; None where it is not there, or too large to be a document."""
    with contextlib.suppress(OSError):
        if path.stat().st_size <= _MAX_BYTES:
            return path.read_bytes()
    return None


def write_log(folder: Path, log: bytes) -> None:
    """Write the end of what a run printed.

    Raises:
        OSError: the disk does not take it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "log.txt").write_bytes(log)


def own_identity() -> str:
    """This process's name for good."""
    return _identity(os.getpid())


def _identity(pid: int) -> str:
    """A process's name for good: its host's boot, its pid, and when it was started."""
    process = read_process(pid)
    started = 0 if process is None else process.start_ticks
    boot = ""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}:{pid}:{started}"


def is_service_alive(service: str) -> bool:
    """Whether that process, as `_identity` names it, still runs."""
    _, _, rest = service.partition(":")
    pid = rest.partition(":")[0]
    return pid.isdigit() and _identity(int(pid)) == service
