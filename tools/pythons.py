"""The Python interpreters of this machine that gpudiag can run under, and its unit tests under each of them.

    python -m tools.pythons FOLDER

FOLDER gets a virtual environment for each version. Tests that start ranks are left out: they want torch.
"""

import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OLDEST = (3, 10)
TOOLS = (
    "hypothesis",
    "httpx",
    "jsonschema",
    "markdown-it-py",
    "pytest",
    "pytest-timeout",
    "pytest-xdist",
    "pyyaml",
)
TESTS = (
    *(
        f"tests/unit/{name}"
        for name in (
            "checks",
            "explain",
            "lint",
            "measured",
            "model",
            "probe",
            "reference",
            "render",
            "runs",
            "sampler",
        )
    ),
    "tests/unit/test_compat.py",
    "tests/unit/test_installed.py",
    "tests/unit/simulate_scenarios",
    "tests/contract/test_python_api.py",
    "tests/cli/test_deploy.py",
    "tests/api/test_access.py",
    "tests/api/test_log.py",
    "tests/api/test_stream.py",
)


def find_pythons() -> Iterator[Path]:
    """This machine's new enough interpreters, one a version, oldest first: pyenv's, uv's, PATH's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    uv = Path(os.environ.get("UV_PYTHON_INSTALL_DIR", Path.home() / ".local/share/uv/python"))
    for minor in range(OLDEST[1], 20):
        name = f"python3.{minor}"
        inside = [*uv.glob(f"cpython-3.{minor}.*/bin/{name}"), *pyenv.glob(f"3.{minor}.*/bin/{name}")]
        newest = sorted(inside, key=lambda python: int(re.findall(r"3\.\d+\.(\d+)", str(python))[-1]))
        yield from newest[-1:] or [Path(place) for place in (shutil.which(name),) if place]


def version_of(python: str | Path) -> str:
    """The version of an interpreter."""
    code = "import platform; print(platform.python_version())"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


def make_environment(python: str | Path, folder: Path) -> str:
    """A new virtual environment of that interpreter; its Python."""
    if Path(python).resolve() == Path(sys.executable).resolve():
        venv.create(folder, with_pip=True, symlinks=True, clear=True)
    else:
        subprocess.run([python, "-m", "venv", "--clear", str(folder)], check=True)
    return str(folder / "bin" / "python")


def main(folder: Path) -> int:
    """The exit status: 1 where the tests fail under some version."""
    failed = []
    for python in find_pythons():
        version = version_of(python)
        inside = make_environment(python, folder / re.sub(r"\.\d+$", "", version))
        pip = (
            inside,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "-c",
            "constraints.txt",
        )
        subprocess.run([*pip, "-e", ".[serve]", *TOOLS], cwd=ROOT, check=True)
        print(f"Python {version}", flush=True)
        tests = [inside, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", *TESTS]
        if subprocess.run(tests, cwd=ROOT, check=False).returncode != 0:
            failed.append(version)
    print(f"failed under: {', '.join(failed)}" if failed else "all passed")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).absolute()))
