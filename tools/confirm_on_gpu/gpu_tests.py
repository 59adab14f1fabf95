"""Run tests/gpu by pytest where it is there, and without it where not: FOLDER_OF_TESTS RESULT.xml."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

_INI = Path(__file__).with_name("pytest.ini")


def main() -> None:
    """Become the runner that this Python has."""
    folder, result = sys.argv[1:]
    if find_spec("pytest") is None:
        command = ["-m", "tools.confirm_on_gpu.without_pytest", folder, result]
    else:
        command = ["-m", "pytest", "-c", str(_INI), "--rootdir", ".", f"--junitxml={result}", folder]
    os.execv(sys.executable, [sys.executable, *command])  # noqa: S606 - the same Python


if __name__ == "__main__":
    main()
