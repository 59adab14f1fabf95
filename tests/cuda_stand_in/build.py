"""Builds the extension for the torch of this interpreter, once per source, with the system's C++ compiler."""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sysconfig
import tempfile
from importlib.metadata import version
from pathlib import Path

_SOURCES = Path(__file__).parent / "native"
_FLAGS = ("-O1", "-std=c++20", "-shared", "-fPIC", "-w", "-DUSE_C10D_GLOO", "-D_GLIBCXX_USE_CXX11_ABI=1")
_LIBRARIES = ("-Wl,--no-as-needed", "-ltorch_python", "-ltorch", "-ltorch_cpu", "-lc10")
_BUILD_SECONDS = 900


class CannotBuildError(Exception):
    """The extension cannot be built here; the words say what is missing."""


def build_extension(folder: Path) -> Path:
    """The extension's path in `folder`, built if it is not there yet.

    Raises:
        CannotBuildError: a compiler, Python's headers or torch's are missing, or the compiler failed.
    """
    compiler = shutil.which("g++") or shutil.which("clang++")
    include = Path(sysconfig.get_paths()["include"])
    torch = _torch_folder()
    if compiler is None:
        raise CannotBuildError("no C++ compiler (tools/install-system-packages brings g++)")
    if not (include / "Python.h").exists():
        raise CannotBuildError(f"no Python.h in {include} (Debian: python3-dev)")
    texts = [path.read_bytes() for path in sorted(_SOURCES.glob("*.*"))]
    digest = hashlib.sha256(
        b"\0".join([*texts, version("torch").encode(), str(include).encode()])
    ).hexdigest()
    target = folder / digest[:16] / "_cuda_stand_in.so"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        made = Path(work) / target.name
        command = [
            compiler,
            *_FLAGS,
            "-DTORCH_EXTENSION_NAME=_cuda_stand_in",
            *(
                f"-I{place}"
                for place in (torch / "include", torch / "include/torch/csrc/api/include", include)
            ),
            str(_SOURCES / "cuda_stand_in.cpp"),
            f"-L{torch / 'lib'}",
            *_LIBRARIES,
            f"-Wl,-rpath,{torch / 'lib'}",
            "-o",
            str(made),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_SECONDS, check=False)
        if done.returncode != 0:
            raise CannotBuildError(f"{compiler} failed: {done.stderr[-2000:]}")
        os.replace(made, target)  # who builds at the same time makes the same file
    return target


def _torch_folder() -> Path:
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        raise CannotBuildError("torch is not installed")
    return Path(spec.submodule_search_locations[0])
