r"""Builds everything that a version is handed out as, into one folder: `make release`.

    python -m tools.release [--folder FOLDER] [--without PART,...] [--key FILE] \
        [--image-repository NAME] [--tag TAG]

Wheel, sdist, single file, deb, rpm, chart, image, SBOM, checksums and their signature. A part that cannot be
built here is named with the reason, and the exit status is 1, unless --without names it. RELEASE.md in the
folder lists what is there and what is not.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import monotonic

from gpudiag import __version__
from hatch_build import urls_of
from tools.release.environment import ROOT, ensure_environment
from tools.release.image import build_image
from tools.release.packages import build_packages, build_sbom
from tools.release.part import NotBuiltError, Release, call
from tools.release.signing import sign, write_sums

CHANGELOG = ROOT / "CHANGELOG.md"


def build_python_packages(release: Release) -> list[Path]:
    """The sdist with the page in it, and the wheel of that sdist, as an index's users build it.

    Raises:
        NotBuiltError: the page or a package could not be built.
    """
    environment = {**os.environ, "GPUDIAG_DASHBOARD": "require", "SOURCE_DATE_EPOCH": str(release.epoch)}
    build = [sys.executable, "-m", "hatchling", "build", "-d", release.folder, "-t"]
    call([*build, "sdist"], environment=environment)
    source = release.work / "sdist"
    with tarfile.open(release.sdist) as archive:
        archive.extractall(source)  # noqa: S202 - it was made a line above
    call([*build, "wheel"], folder=next(source.iterdir()), environment=environment)
    return [release.sdist, release.wheel]


def build_single_file(release: Release) -> list[Path]:
    """The single file, tried on simulated machines.

    Raises:
        NotBuiltError: it could not be built, or does not do what it must.
    """
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(release.epoch)}
    if not release.wheel.exists():
        raise NotBuiltError("it holds the wheel, which was not built")
    build = [sys.executable, "-m", "tools.build_single_file", release.single_file, release.wheel]
    call(build, environment=environment)
    return [release.single_file]


def pack_chart(release: Release) -> list[Path]:
    """The chart, packed by Helm's SDK; its default image is the release's.

    Raises:
        NotBuiltError: Helm's SDK refused it.
    """
    folder = release.work / "chart"
    shutil.copytree(ROOT / "deploy" / "helm", folder)  # with what its links lead to
    values = folder / "values.yaml"
    before = "  repository: gpudiag # your registry's\n"
    if before not in values.read_text():
        raise NotBuiltError("values.yaml of the chart has no line for the repository of the image")
    values.write_text(values.read_text().replace(before, f"  repository: {release.image_repository}\n"))
    call([release.tools / "python", ROOT / "tools/release/helm.py", "package", folder, release.folder])
    return [release.chart]


# In this order: the packages hold the single file, the image and the SBOM the wheel, the sums everything.
PARTS: dict[str, Callable[[Release], list[Path]]] = {
    "python": build_python_packages,
    "single-file": build_single_file,
    "deb": lambda release: build_packages(release, "deb"),
    "rpm": lambda release: build_packages(release, "rpm"),
    "chart": pack_chart,
    "sbom": build_sbom,
    "image": build_image,
    "checksums": write_sums,
    "signature": sign,
}


def main() -> int:
    """The exit status: 1 where a part is missing that nobody left out."""
    options = read_options()
    if options.tag and (wrong := wrong_tag(options.tag)):
        print(f"release: {wrong}", file=sys.stderr)
        return 1
    try:
        tools = ensure_environment()
    except subprocess.CalledProcessError as error:
        print(f"release: the release's tools cannot be installed: {error}", file=sys.stderr)
        return 1
    folder = options.folder.absolute()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="gpudiag-release-") as work:
        release = Release(
            __version__,
            folder,
            Path(work),
            tools,
            commit_time(),
            repository_url(),
            options.image_repository,
            options.python_image,
            options.key,
        )
        missing = build(release, options.without)
    listed = list_files(folder, missing, options.without)
    (folder / "RELEASE.md").write_text(listed)
    print(listed)
    return int(bool(set(missing) - set(options.without)))


def build(release: Release, without: list[str]) -> dict[str, str]:
    """Build every part; why those that are missing are."""
    missing = {}
    for name, make in PARTS.items():
        if name in without:
            missing[name] = "left out: --without names it"
            continue
        started = monotonic()
        try:
            made = make(release)
        except NotBuiltError as error:
            missing[name] = str(error)
            print(f"{name}: not built: {error}", file=sys.stderr, flush=True)
        else:
            names = ", ".join(path.name for path in made)
            print(f"{name}: {names} ({monotonic() - started:.0f} s)", flush=True)
    return missing


def list_files(folder: Path, missing: dict[str, str], without: list[str]) -> str:
    """RELEASE.md: the files, and what is missing with its reason."""
    files = sorted(path for path in folder.iterdir() if path.name != "RELEASE.md")
    lines = [f"# gpudiag {__version__}", "", "| file | MB |", "| --- | --- |"]
    lines += [f"| {path.name} | {path.stat().st_size / 1e6:.2f} |" for path in files]
    if missing:
        lines += ["", "Not in this release:", ""]
        lines += [f"- {name}: {reason}" for name, reason in missing.items()]
    if unexpected := [name for name in missing if name not in without]:
        lines += ["", f"To leave it out on purpose: make release WITHOUT={','.join([*without, *unexpected])}"]
    return "\n".join(lines) + "\n"


def wrong_tag(tag: str) -> str | None:
    """Why a tag is not this version's; None where it is."""
    if tag != f"v{__version__}":
        return f"the tag is {tag}, and gpudiag/__init__.py has {__version__}: the tag must be v{__version__}"
    if f"\n## [{__version__}]" not in CHANGELOG.read_text():
        return f"CHANGELOG.md has no section [{__version__}]: date what is under Unreleased"
    return None


def commit_time() -> int:
    """The time of the commit, in seconds, for files of equal builds; elsewhere 1980."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(given)
    try:
        return int(call(["git", "log", "-1", "--format=%ct"]))
    except NotBuiltError:
        return 315532800  # not a checkout: the first moment that a zip file can name


def repository_url() -> str:
    """Where the repository is, from pyproject.toml; empty where nobody has published it."""
    from gpudiag.toml import tomllib

    hooks = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["metadata"]["hooks"]
    repository = str(hooks["custom"]["repository"]).rstrip("/")
    return urls_of(repository)["Repository"] if repository else ""


def read_options() -> argparse.Namespace:
    """The options of the command line; a part that there is none of ends the program."""
    parser = argparse.ArgumentParser(
        prog="tools.release", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "release", metavar="FOLDER")
    parser.add_argument("--without", default="", metavar="PART,...", help=", ".join(PARTS))
    parser.add_argument("--key", type=Path, metavar="FILE", help="SSH key that signs SHA256SUMS")
    parser.add_argument("--image-repository", default="gpudiag", metavar="NAME", help="default: gpudiag")
    parser.add_argument("--python-image", default="", metavar="IMAGE", help="default: that of the Dockerfile")
    parser.add_argument("--tag", metavar="TAG", help="refuse unless it is this version's")
    options = parser.parse_args()
    options.without = [name for name in options.without.split(",") if name]
    if unknown := [name for name in options.without if name not in PARTS]:
        parser.error(f"--without: there is no part {unknown[0]!r}; there are: {', '.join(PARTS)}")
    if options.key is not None and not options.key.exists():
        parser.error(f"--key: there is no file {options.key}")
    return options


if __name__ == "__main__":
    sys.exit(main())
