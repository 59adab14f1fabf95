"""Installs the frameworks that `gpudiag train` compares, for the tests marked `frameworks`.

    python -m tools.install_frameworks FOLDER

FOLDER/torch gets DeepSpeed, Horovod (built once, see build_horovod.sh) and Accelerate beside the torch of the
calling interpreter, FOLDER/tensorflow gets TensorFlow. Both are plain virtual environments, and what is there
already stays. What cannot be installed costs only itself: FOLDER/NAME.absent then has the reason, the tests
of that framework are skipped with these words, and the exit status is 1.
"""

import os
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

from tools.install_environment import TESTED_TORCH, has_torch, share_outer_torch

DEEPSPEED = "deepspeed==0.19.8"
ACCELERATE = "accelerate==1.15.0"
TENSORFLOW = "tensorflow-cpu==2.21.0"
_BUILD_HOROVOD = Path(__file__).with_name("build_horovod.sh")


class NotInstalledError(Exception):
    """A command that installs something failed; the message is its last line."""


def install(folder: Path) -> list[str]:
    """The names of those that could not be installed."""
    folder.mkdir(parents=True, exist_ok=True)
    steps: dict[str, Callable[[], None]] = {
        "deepspeed": lambda: _install_deepspeed(_make_with_torch(folder / "torch")),
        "horovod": lambda: _run(str(_BUILD_HOROVOD), str(_make_with_torch(folder / "torch"))),
        "accelerate": lambda: _pip(_make_with_torch(folder / "torch"), ACCELERATE),
        "tensorflow": lambda: _pip(_make(folder / "tensorflow"), TENSORFLOW, "click"),
    }
    return [name for name, step in steps.items() if not _try(folder, name, step)]


def _try(folder: Path, name: str, step: Callable[[], None]) -> bool:
    """Whether it is installed, now or already; if not, the reason is left in a file."""
    installed, absent = folder / f"{name}.installed", folder / f"{name}.absent"
    if installed.exists():
        return True
    print(f"installing {name}", flush=True)
    absent.unlink(missing_ok=True)
    try:
        step()
    except NotInstalledError as error:
        print(f"{name} could not be installed: {error}", flush=True)
        absent.write_text(f"{error}\n")
        return False
    installed.touch()
    return True


def _install_deepspeed(python: Path) -> None:
    _pip(python, "--no-build-isolation", DEEPSPEED, variables={"DS_BUILD_OPS": "0"})


def _make_with_torch(folder: Path) -> Path:
    """The interpreter of an environment with a torch that is fit, the caller's where it has one."""
    made = (folder / "bin" / "python").exists()
    python = _make(folder)
    if not made:
        share_outer_torch(folder)
    if not has_torch(folder):
        _pip(python, TESTED_TORCH)
    _pip(python, "numpy", "setuptools", "wheel", "click")
    return python


def _make(folder: Path) -> Path:
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    return python


def _pip(python: Path, *words: str, variables: dict[str, str] | None = None) -> None:
    _run(str(python), "-m", "pip", "install", "--quiet", *words, variables=variables)


def _run(*command: str, variables: dict[str, str] | None = None) -> None:
    done = subprocess.run(
        command,
        env={**os.environ, **(variables or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    print(done.stdout, end="", flush=True)
    if done.returncode != 0:
        words = done.stdout.strip().splitlines()
        raise NotInstalledError(words[-1] if words else f"exit status {done.returncode}, and no word")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(1 if install(Path(sys.argv[1]).resolve()) else 0)
