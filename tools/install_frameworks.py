"""Installs the frameworks that `gpudiag train` compares, each where it belongs, for the tests marked `frameworks`.

    python tools/install_frameworks.py FOLDER

FOLDER/torch gets torch, DeepSpeed and Horovod (built once, see build_horovod.sh), FOLDER/tensorflow gets
TensorFlow. Both are plain virtual environments; what is there already stays. Then:

    GPUDIAG_FRAMEWORKS=FOLDER pytest -m frameworks
"""

import os
import subprocess
import sys
import venv
from pathlib import Path

TORCH = "torch==2.13.0"
DEEPSPEED = "deepspeed==0.19.8"
TENSORFLOW = "tensorflow-cpu==2.21.0"
_HERE = Path(__file__).parent


def install(folder: Path) -> None:
    """Make both environments."""
    torch, tensorflow = folder / "torch", folder / "tensorflow"
    if not (torch / ".complete").exists():
        python = _make(torch)
        _pip(python, TORCH, "numpy", "setuptools", "wheel", "click")
        _pip(python, "--no-build-isolation", DEEPSPEED, variables={"DS_BUILD_OPS": "0"})
        subprocess.run([str(_HERE / "build_horovod.sh"), str(python)], check=True)
        (torch / ".complete").touch()
    if not (tensorflow / ".complete").exists():
        _pip(_make(tensorflow), TENSORFLOW, "click")
        (tensorflow / ".complete").touch()


def _make(folder: Path) -> Path:
    venv.create(folder, with_pip=True, clear=True)
    return folder / "bin" / "python"


def _pip(python: Path, *words: str, variables: dict[str, str] | None = None) -> None:
    command = [str(python), "-m", "pip", "install", "--quiet", *words]
    subprocess.run(command, check=True, env={**os.environ, **(variables or {})})


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    install(Path(sys.argv[1]).resolve())
