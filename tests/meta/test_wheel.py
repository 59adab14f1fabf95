import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The names inside a wheel that is built from a copy of what the wheel is made of."""
    pytest.importorskip("hatchling", reason="hatchling is not installed: the wheel cannot be built offline")
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE", "hatch_build.py"):
        shutil.copy(ROOT / name, source)
    for name in ("gpudiag", "api"):
        shutil.copytree(
            ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "node_modules")
        )
    target = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    (wheel,) = target.glob("*.whl")
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
