r"""Installs gpudiag in every way of docs/install.md, under each Python, and prints the costs.

    python -m tools.measure_installs [--pythons PYTHON ...] \
        [--single-file FILE | --release FOLDER] [--ways WAY ...]

Each way starts from nothing: a new virtual environment (its making is counted) and pip's own download cache
as it is. Then `gpudiag preflight --level instant` must end as it should on a simulated machine with a lost
GPU. Without --pythons: every python3.N on the PATH, and those of pyenv, from 3.10 on. --release takes what
`make release` built, its deb and rpm too; both are unpacked into a folder, and run under the system's own
Python.
"""

import argparse
import os
import re
import resource
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from tools.pythons import find_pythons, version_of

ROOT = Path(__file__).resolve().parents[1]
LIMIT_SECONDS = 1800
EXTRAS = ("serve", "hang", "postgres")
_QUIET = ("--quiet", "--disable-pip-version-check")


@dataclass(frozen=True, slots=True)
class Built:
    """What is installed: the wheel and sdist of this checkout, the single file and packages."""

    wheel: Path
    sdist: Path
    single_file: Path | None
    deb: Path | None = None
    rpm: Path | None = None


@dataclass(frozen=True, slots=True)
class Cost:
    """What an installation took, and whether it then did what it must."""

    wall_seconds: float
    processor_seconds: float
    megabytes: float
    works: str


Way = Callable[[str, Built, Path], list[str]]  # of a Python, into a folder; the command that then is gpudiag


def install_wheel(python: str, built: Built, folder: Path, extra: str = "") -> list[str]:
    """`pip install gpudiag-VERSION.whl` into a new virtual environment."""
    _run(python, "-m", "venv", str(folder / "env"))
    _run(str(folder / "env/bin/python"), "-m", "pip", "install", *_QUIET, f"{built.wheel}{extra}")
    return [str(folder / "env/bin/gpudiag")]


def install_sdist(python: str, built: Built, folder: Path) -> list[str]:
    """`pip install gpudiag-VERSION.tar.gz`, where there is no node."""
    _run(python, "-m", "venv", str(folder / "env"))
    without_node = {**os.environ, "PATH": "/usr/sbin:/sbin", "GPUDIAG_DASHBOARD": "require"}
    pip = (str(folder / "env/bin/python"), "-m", "pip", "install", *_QUIET, str(built.sdist))
    _run(*pip, environment=without_node)
    page = list((folder / "env").glob("lib/python*/site-packages/gpudiag_api/static/index.html"))
    if not page:
        raise SystemExit("the installation from the sdist has no page")
    return [str(folder / "env/bin/gpudiag")]


def install_by_pipx(python: str, built: Built, folder: Path) -> list[str]:
    """`pipx install gpudiag-VERSION.whl`; pipx itself is not counted."""
    places = {
        "PIPX_HOME": str(folder / "pipx"),
        "PIPX_BIN_DIR": str(folder / "bin"),
        "PIPX_MAN_DIR": str(folder / "man"),
    }
    pipx = (sys.executable, "-m", "pipx", "install", "--quiet", "--python", python, str(built.wheel))
    _run(*pip_or(pipx), environment={**os.environ, **places})
    return [str(folder / "bin/gpudiag")]


def pip_or(command: tuple[str, ...]) -> tuple[str, ...]:
    """The command, if its module is there. Raises LookupError: it is not."""
    from importlib.util import find_spec

    if find_spec(command[2]) is None:
        raise LookupError(f"{command[2]} is not installed")
    return command


def unpack_single_file(python: str, built: Built, folder: Path) -> list[str]:
    """The single file's first run, which unpacks it."""
    if built.single_file is None:
        raise LookupError("no --single-file was given")
    os.environ["PEX_ROOT"] = str(folder / "pex")
    command = [python, str(built.single_file)]
    _run(*command, "--version")
    return command


def unpack_deb(_python: str, built: Built, folder: Path) -> list[str]:
    """The deb's files, as `dpkg -i` writes them; its program's first run."""
    if built.deb is None:
        raise LookupError("there is no deb")
    _run("dpkg-deb", "--extract", str(built.deb), str(folder))
    return _start_unpacked(folder)


def unpack_rpm(_python: str, built: Built, folder: Path) -> list[str]:
    """The rpm's files, as `rpm -i` writes them; its program's first run."""
    if built.rpm is None:
        raise LookupError("there is no rpm")
    if shutil.which("rpm2cpio") is None or shutil.which("cpio") is None:
        raise LookupError("rpm2cpio or cpio is not installed")
    with subprocess.Popen(["rpm2cpio", str(built.rpm)], stdout=subprocess.PIPE) as unpacked:  # noqa: S607
        subprocess.run(
            ["cpio", "--quiet", "-idm"],  # noqa: S607
            stdin=unpacked.stdout,
            cwd=folder,
            check=True,
        )
    return _start_unpacked(folder)


def _start_unpacked(folder: Path) -> list[str]:
    os.environ["PEX_ROOT"] = str(folder / "pex")
    command = [str(folder / "usr/bin/gpudiag")]
    _run(*command, "--version")
    return command


WAYS: dict[str, Way] = {
    "wheel": install_wheel,
    "sdist, no node": install_sdist,
    "pipx": install_by_pipx,
    "single file": unpack_single_file,
    "deb": unpack_deb,
    "rpm": unpack_rpm,
    **{
        f"wheel[{extra}]": lambda python, built, folder, extra=extra: install_wheel(  # type: ignore[misc]
            python, built, folder, f"[{extra}]"
        )
        for extra in EXTRAS
    },
}


def main() -> int:
    """The exit status: 1 where some installation does not work."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pythons", nargs="+", default=None, metavar="PYTHON")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS), metavar="WAY")
    parser.add_argument("--single-file", type=Path, metavar="FILE")
    parser.add_argument("--release", type=Path, metavar="FOLDER")
    options = parser.parse_args()
    pythons = options.pythons or [str(path) for path in find_pythons()]
    failed = False
    with tempfile.TemporaryDirectory(prefix="gpudiag-installs-") as folder:
        built = (
            build(Path(folder), options.single_file)
            if options.release is None
            else find_built(options.release)
        )
        print(
            "| Python | way | seconds | of a processor | MB | works |\n| --- | --- | --- | --- | --- | --- |"
        )
        for python in pythons:
            for way in options.ways:
                cost = measure(python, way, built, Path(folder))
                failed |= not cost.works.startswith(("yes", "not tried"))
                print(
                    f"| {version_of(python)} | {way} | {cost.wall_seconds:.1f} |"
                    f" {cost.processor_seconds:.1f} | {cost.megabytes:.0f} | {cost.works} |",
                    flush=True,
                )
    load = " ".join(f"{one:.0f}" for one in os.getloadavg())
    print(f"\n{os.cpu_count()} processors, load average {load}")
    return int(failed)


def measure(python: str, way: str, built: Built, folder: Path) -> Cost:
    """What that way costs under that Python."""
    place = folder / f"{version_of(python)}-{re.sub(r'[^a-z]+', '-', way)}"
    place.mkdir()
    before, started = _processor_seconds(), monotonic()
    try:
        command = WAYS[way](python, built, place)
    except LookupError as error:
        return Cost(0.0, 0.0, 0.0, f"not tried: {error}")
    except subprocess.CalledProcessError as error:
        return Cost(monotonic() - started, _processor_seconds() - before, 0.0, f"no: {error}")
    seconds, processor = monotonic() - started, _processor_seconds() - before
    size = sum(path.lstat().st_size for path in place.rglob("*") if path.is_file() and not path.is_symlink())
    works = try_out(command)
    shutil.rmtree(place)
    return Cost(seconds, processor, size / 1e6, works)


def try_out(command: list[str]) -> str:
    """`yes`, or what a gate on a simulated machine with a lost GPU does wrongly."""
    gate = [*command, "preflight", "--level", "instant", "--fail-on", "machine", "--reason"]
    done = subprocess.run(
        [*command, "simulate", "h100x8+lost:3", "--", *gate],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    if done.returncode == 1 and "gpu.lost" in done.stdout:
        return "yes"
    return f"no: exit status {done.returncode}: {(done.stdout + done.stderr).strip()[-200:]}"


def build(folder: Path, single_file: Path | None) -> Built:
    """The sdist of this checkout, and the wheel of that."""
    hatchling = (sys.executable, "-m", "hatchling", "build", "-d", str(folder / "dist"), "-t")
    _run(*hatchling, "sdist")
    (sdist,) = (folder / "dist").glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "source")  # noqa: S202 - it was made a line above
    (source,) = (folder / "source").iterdir()
    _run(*hatchling, "wheel", folder=source)
    (wheel,) = (folder / "dist").glob("*.whl")
    return Built(wheel, sdist, None if single_file is None else single_file.absolute())


def find_built(folder: Path) -> Built:
    """What `make release` left in the folder."""
    found = {path.suffix: path.absolute() for path in folder.glob("gpudiag*") if "image" not in path.name}
    missing = [kind for kind in (".whl", ".gz") if kind not in found]
    if missing:
        sys.exit(f"measure_installs: {folder} has no file that ends in {missing[0]}: make release")
    return Built(found[".whl"], found[".gz"], found.get(".pex"), found.get(".deb"), found.get(".rpm"))


def _run(*command: str, environment: dict[str, str] | None = None, folder: Path = ROOT) -> None:
    subprocess.run(
        command,
        cwd=folder,
        env=environment,
        check=True,
        timeout=LIMIT_SECONDS,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main())
