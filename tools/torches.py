"""The rank tests under other versions of torch than the one that the suite runs on.

    python -m tools.torches FOLDER VERSION [VERSION ...]

FOLDER gets a virtual environment for each version, kept for the next time: each is a download of gigabytes,
which is why CI leaves it out. Where pip sees only builds for CUDA, these serve: the tests want no GPU.
"""

import subprocess
import sys
from pathlib import Path

from tools.pythons import ROOT, TOOLS, make_environment

# What depends on torch most: each collective with each dtype, the strategies, how ranks start, fail and end.
TESTS = (
    "tests/ranks/test_nccl_test.py",
    "tests/ranks/test_train.py",
    "tests/ranks/test_launch.py",
    "tests/ranks/test_bandwidth.py",
    "tests/ranks/test_localise.py",
    "tests/cli/test_preflight.py",
)
# Of their own: some rank tests start torch's debug server.
_MORE_TOOLS = ("tabulate", "prometheus_client")


def main(folder: Path, versions: list[str]) -> int:
    """The exit status: 1 where the tests fail under some version."""
    failed = [version for version in versions if not _passes(folder / version, version)]
    print(f"failed under torch {', '.join(failed)}" if failed else "all passed")
    return int(bool(failed))


def _passes(folder: Path, version: str) -> bool:
    python = str(folder / "bin" / "python")
    if not Path(python).exists():
        make_environment(sys.executable, folder)
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        # Torch first: constraints.txt leaves it open, and NumPy is the one that this torch takes.
        subprocess.run([*pip, f"torch=={version}", "numpy"], cwd=ROOT, check=True)
        packages = ("-e", ".[serve,hang]", *TOOLS, *_MORE_TOOLS)
        subprocess.run([*pip, "-c", "constraints.txt", *packages], cwd=ROOT, check=True)
    print(f"torch {version}", flush=True)
    tests = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", "-m", "ranks", *TESTS]
    return subprocess.run(tests, cwd=ROOT, check=False).returncode == 0


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]).absolute(), sys.argv[2:]))
