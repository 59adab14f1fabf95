"""What a release is built of: its places, and a part of it that could not be built."""

import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.release.environment import ROOT

LIMIT_SECONDS = 1800


class NotBuiltError(Exception):
    """A part could not be built; the message is one sentence with what to do."""


@dataclass(frozen=True, slots=True)
class Release:
    """One version, and where its files are made."""

    version: str
    folder: Path  # what is handed out
    work: Path  # what the parts need while they are built
    tools: Path  # programs of tools/release/environment.py
    epoch: int  # seconds: the time that files are given, that of the commit
    url: str  # of the repository; "" where nobody has published it
    image_repository: str  # such as registry.example/gpudiag
    python_image: str  # the image that ours is built on; "" for the Dockerfile's own
    key: Path | None  # the SSH key that signs

    @property
    def wheel(self) -> Path:
        """The wheel."""
        return self.folder / f"gpudiag-{self.version}-py3-none-any.whl"

    @property
    def sdist(self) -> Path:
        """The sdist."""
        return self.folder / f"gpudiag-{self.version}.tar.gz"

    @property
    def single_file(self) -> Path:
        """The single file."""
        return self.folder / f"gpudiag-{self.version}.pex"

    @property
    def chart(self) -> Path:
        """The chart, as Helm names it."""
        return self.folder / f"gpudiag-{self.version}.tgz"

    @property
    def deb(self) -> Path:
        """Debian's package."""
        return self.folder / f"gpudiag_{self.version}_all.deb"

    @property
    def rpm(self) -> Path:
        """The RPM."""
        return self.folder / f"gpudiag-{self.version}-1.noarch.rpm"


def call(command: Sequence[object], *, folder: Path = ROOT, environment: dict[str, str] | None = None) -> str:
    """What a command printed on standard output.

    Raises:
        NotBuiltError: it is not there, failed, or took too long; with its last line.
    """
    name = Path(str(command[0])).name
    try:
        process = subprocess.Popen(
            [str(word) for word in command],
            cwd=folder,
            env=environment,
            text=True,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    except OSError as error:
        raise NotBuiltError(f"{name} cannot be started: {error.strerror}") from error
    with process:
        try:
            printed, failed = process.communicate(timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired as error:
            os.killpg(process.pid, signal.SIGKILL)
            raise NotBuiltError(f"{name} had not ended after {LIMIT_SECONDS} s") from error
        except BaseException:  # Ctrl-C: what the command started ends with it
            os.killpg(process.pid, signal.SIGKILL)
            raise
    if process.returncode != 0:
        lines = (failed or printed).strip().splitlines() or ["it printed nothing"]
        raise NotBuiltError(f"{name} ended with status {process.returncode}: {lines[-1].strip()}")
    return printed
