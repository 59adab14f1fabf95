"""The folders for temporary files and for what can be made again."""

import os
import tempfile
from pathlib import Path

from gpudiag.errors import GpudiagError


def temporary_folder() -> Path:
    """The folder for temporary files: TMPDIR, else /tmp and the like, whichever can be written.

    Raises:
        GpudiagError: none of them can be written, or all are full.
    """
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError:
        raise GpudiagError(
            "no folder for temporary files can be written, or all of them are full: TMPDIR, /tmp, /var/tmp",
            hint="free some space there (df -h /tmp), or set TMPDIR to a folder that you can write to",
        ) from None


def cache_folder() -> Path | None:
    """This user's folder for what can be made again; None for a user without HOME and without an account."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return None if base.startswith("~") else Path(base) / "gpudiag"
