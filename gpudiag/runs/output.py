"""Writing documents to files: checked writable before the work, and written whole or not at all."""

import errno
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from gpudiag.errors import GpudiagError, UsageError

_UNENCODABLE = (
    "backslashreplace"  # of bytes in a name or an argument that are no UTF-8; in JSON that is an escape
)


def require_writable(path: Path) -> None:
    """Raise UsageError unless a document can be written to `path`, which is left as it was."""
    try:
        if _is_special(path):
            if not os.access(path, os.W_OK):
                raise PermissionError(errno.EACCES, "Permission denied")
            return
        existed = path.exists()
        # Opening is the only reliable test: it covers read-only file systems, quotas and permissions.
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666))
        if not existed:
            path.unlink()
        elif not os.access(path.resolve().parent, os.W_OK):  # where the new document is written first
            raise PermissionError(errno.EACCES, "its folder takes no new file")
    except OSError as error:
        hint = "name a file in a folder that you can write to"
        raise UsageError(f"cannot write to {path}: {error.strerror or error}", hint=hint) from error


def write_document(path: Path, text: str) -> None:
    """Write `text` so that a reader sees the old document or the new one. Raises GpudiagError: it failed."""
    write_documents({path: text})


def write_documents(texts: Mapping[Path, str]) -> None:
    """Write each text to its path, or keep all old documents. Raises GpudiagError: one failed."""
    partials: list[tuple[Path, Path]] = []
    path = Path()
    try:
        for path, text in texts.items():
            if _is_special(path):  # a pipe or a device: there is nothing to replace
                path.write_text(text, encoding="utf-8", errors=_UNENCODABLE)
                continue
            target = path.resolve()  # a symlink stays a symlink
            partials.append((target.with_name(f".{target.name}.{os.getpid()}"), target))
            partials[-1][0].write_text(text, encoding="utf-8", errors=_UNENCODABLE, newline="")
        for partial, target in partials:
            partial.replace(target)
    except OSError as error:
        raise GpudiagError(f"cannot write to {path}: {error.strerror or error}") from error
    finally:
        for partial, _ in partials:
            partial.unlink(missing_ok=True)


def _is_special(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)
