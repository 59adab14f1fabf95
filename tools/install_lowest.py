"""Installs the lowest versions that gpudiag allows, and runs a part of the tests on them.

    python -m tools.install_lowest FOLDER

FOLDER is the virtual environment, remade with the oldest Python that is here and new enough. torch is left
out: its lowest version is a download of gigabytes. What a lower bound promises is so known to be true, and
not hoped.
"""

import subprocess
import sys
from pathlib import Path
from time import monotonic

from tools.pythons import find_pythons, make_environment, version_of

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = "serve,postgres,hang"
# What the chosen tests need; versions as elsewhere.
TOOLS = ("hypothesis", "pytest", "pytest-timeout", "pytest-xdist", "httpx", "jsonschema", "pyyaml")
# Each package is met: click, nvidia-ml-py and SQLAlchemy, and under the service FastAPI, Starlette, pydantic,
# uvicorn.
TESTS = (
    "tests/unit/test_installed.py",
    "tests/unit/probe/test_nvml_errors.py",
    "tests/unit/runs/test_store.py",
    "tests/cli/test_deploy.py",
    "tests/cli/test_main.py",
    "tests/cli/test_list.py::test_free_ids_are_what_cuda_takes",
    "tests/api/test_access.py::test_a_body_that_never_ends_is_cut_off",
    "tests/api/test_documents.py",
)


def main(folder: Path) -> int:
    """The exit status of the tests."""
    started = monotonic()
    python = make_environment(next(find_pythons(), Path(sys.executable)), folder)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "-c", "constraints-lowest.txt", f".[{EXTRAS}]"], cwd=ROOT, check=True)
    subprocess.run([*pip, "-c", "constraints.txt", *TOOLS], cwd=ROOT, check=True)
    print(
        f"Python {version_of(python)}: installed the lowest versions in {monotonic() - started:.0f} s",
        flush=True,
    )
    tests = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", *TESTS]
    return subprocess.run(tests, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).absolute()))
