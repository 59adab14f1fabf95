"""A folder of wheels, and perhaps an NCCL library, brought to a machine that has no network."""

from __future__ import annotations

import lzma
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NCCL = "libnccl.so.2"
_LIMIT_SECONDS = 120.0


class WheelsError(Exception):
    """A folder of wheels that cannot be used; the message has the reason, and what to do."""


@contextmanager
def installed_wheels(folder: Path) -> Iterator[Path | None]:
    """The NCCL library of the folder, if any; its wheels are on the paths meanwhile.

    They are installed into a temporary folder, without any network and without what they depend on: the
    folder has all that is needed. This Python itself stays as it is.

    Raises:
        WheelsError: there are none, or pip cannot install them.
    """
    wheels = sorted(folder.rglob("*.whl"))
    if not wheels:
        raise WheelsError(f"--wheels {folder}: there is no wheel; make the folder as in docs/gpu.md")
    with tempfile.TemporaryDirectory(prefix="confirm-wheels-", ignore_cleanup_errors=True) as place:
        site = Path(place, "site")
        _install(wheels, site)
        before = {name: os.environ.get(name) for name in ("PYTHONPATH", "PATH")}
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(site), before["PYTHONPATH"]]))
        os.environ["PATH"] = os.pathsep.join(filter(None, [str(site / "bin"), before["PATH"]]))
        sys.path.insert(1, str(site))
        try:
            yield _unpack_nccl(folder, Path(place))
        finally:
            sys.path.remove(str(site))
            for name, text in before.items():
                if text is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = text


def _install(wheels: list[Path], site: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--target", str(site), *map(str, wheels)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise WheelsError(f"--wheels: pip cannot install them: {error}") from error
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip().splitlines()
        raise WheelsError(
            f"--wheels: pip cannot install them: {words[-1] if words else 'it printed nothing'}"
        )


def _unpack_nccl(folder: Path, place: Path) -> Path | None:
    """The library, unpacked where it is packed; None where the folder has none."""
    plain, packed = folder / _NCCL, folder / f"{_NCCL}.xz"
    if plain.exists():
        return plain.resolve()
    if not packed.exists():
        return None
    target = place / _NCCL
    try:
        with lzma.open(packed) as source, target.open("wb") as copy:
            shutil.copyfileobj(source, copy)
    except (OSError, lzma.LZMAError) as error:
        raise WheelsError(f"--wheels: {packed} cannot be unpacked: {error}") from error
    return target
