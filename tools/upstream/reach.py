"""Upstream's texts as they are now: files of GitHub, pages, members of the newest release.

`Saved` reads the same from a folder, for a machine that reaches none of it: `github/OWNER/NAME/PATH`,
`pages/NAME`, `packages/NAME/MEMBER` and `packages/NAME/VERSION`, a file with the version alone.
"""

import json
import os
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Protocol

from tools.upstream.compare import NotRead

_SECONDS = 60
_DOWNLOAD_SECONDS = 900  # NCCL's wheel has 300 MB


class Reach(Protocol):
    """A way to upstream's texts. Each method raises NotRead where it gets none."""

    def read_github(self, repository: str, branch: str, path: str) -> str:
        """The text of a file on a branch or tag of a repository."""

    def read_page(self, name: str, address: str) -> str:
        """The text of a page."""

    def read_version(self, package: str) -> str:
        """The newest release of a package."""

    def read_members(self, package: str, members: tuple[str, ...]) -> list[bytes]:
        """Those files of the newest wheel."""


class Live:
    """Upstream itself."""

    def read_github(self, repository: str, branch: str, path: str) -> str:
        """The text of a file on a branch or tag of a repository."""
        return _read_address(f"https://raw.githubusercontent.com/{repository}/{branch}/{path}")

    def read_page(self, name: str, address: str) -> str:
        """The text of a page."""
        return _read_address(address)

    @cache  # noqa: B019 - one for the life of the program
    def read_version(self, package: str) -> str:
        """The newest release of a package that this interpreter could install."""
        asked = ("install", "--dry-run", "--ignore-installed", "--no-deps", "--report", "-", package)
        report = json.loads(_pip(package, *asked, seconds=_SECONDS * 3))
        return str(report["install"][0]["metadata"]["version"])

    def read_members(self, package: str, members: tuple[str, ...]) -> list[bytes]:
        """Those files of the newest wheel."""
        with tempfile.TemporaryDirectory() as folder:
            _pip(package, "download", "--no-deps", "--dest", folder, package, seconds=_DOWNLOAD_SECONDS)
            wheel = next(Path(folder).glob("*.whl"), None)
            if wheel is None:
                raise NotRead(f"the newest release of {package} has no wheel for this machine")
            with zipfile.ZipFile(wheel) as archive, _missing_member(package):
                return [archive.read(member) for member in members]


class Saved:
    """Copies in a folder."""

    def __init__(self, folder: Path) -> None:
        """Nothing is read yet."""
        self._folder = folder

    def read_github(self, repository: str, branch: str, path: str) -> str:
        """The copy of a file; which branch it was taken from is up to who saved it."""
        return self._read("github", *repository.split("/"), path).decode(errors="replace")

    def read_page(self, name: str, address: str) -> str:
        """The copy of a page."""
        return self._read("pages", name).decode(errors="replace")

    def read_version(self, package: str) -> str:
        """The version that was saved."""
        return self._read("packages", package, "VERSION").decode().strip()

    def read_members(self, package: str, members: tuple[str, ...]) -> list[bytes]:
        """The copies of those files."""
        return [self._read("packages", package, member) for member in members]

    def _read(self, *parts: str) -> bytes:
        path = self._folder.joinpath(*parts)
        try:
            return path.read_bytes()
        except OSError as error:
            raise NotRead(f"{path} could not be read ({error.strerror})") from error


def _read_address(address: str) -> str:
    # All callers pass addresses of https.
    request = urllib.request.Request(address, headers={"User-Agent": "gpudiag-upstream"})  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS) as answer:  # noqa: S310
            text: str = answer.read().decode(errors="replace")
    except (OSError, urllib.error.URLError) as error:
        raise NotRead(f"{address} could not be read ({getattr(error, 'reason', error)})") from error
    return text


def _pip(package: str, *arguments: str, seconds: float) -> str:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    # A limit on versions in this machine's own settings would hide that there is a newer one.
    environment = {**os.environ, "PIP_CONSTRAINT": os.devnull}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, check=False, env=environment
        )
    except subprocess.TimeoutExpired as error:
        raise NotRead(f"pip did not get {package} within {seconds:.0f} s") from error
    if done.returncode != 0:
        words = next((line for line in reversed(done.stderr.splitlines()) if line.startswith("ERROR")), "")
        raise NotRead(f"pip could not get {package} ({words.removeprefix('ERROR: ') or done.returncode})")
    return done.stdout


@contextmanager
def _missing_member(package: str) -> Iterator[None]:
    try:
        yield
    except KeyError as error:
        raise NotRead(f"the newest wheel of {package} has no such file ({error.args[0]})") from error
