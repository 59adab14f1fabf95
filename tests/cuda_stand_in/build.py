"""Builds the stand-in's libraries for the torch of this interpreter, once per source, with the system's C++
compiler.
"""

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
_FLAGS = ("-O1", "-std=c++20", "-shared", "-fPIC", "-w", "-Wl,--no-as-needed", "-Wl,-rpath,$ORIGIN")
_TORCH_FLAGS = ("-DUSE_C10D_GLOO", "-D_GLIBCXX_USE_CXX11_ABI=1", "-DTORCH_EXTENSION_NAME=_cuda_stand_in")
_TORCH_LIBRARIES = ("-ltorch_python", "-ltorch", "-ltorch_cpu", "-lc10")
EXTENSION = "libtorch_cuda.so"
# Those under it, by the names of the real ones: each file's source, and what it calls. A stripped one shows
# what it exports.
_UNDER: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("libcuda.so.1", "cuda.cpp", ()),
    ("libcudart.so.12", "cudart.cpp", ("libcuda.so.1",)),
    ("libc10_cuda.so", "c10_cuda.cpp", ("libcudart.so.12",)),
    ("libnccl.so.2", "nccl.cpp", ()),
)
_BUILD_SECONDS = 900


class CannotBuildError(Exception):
    """The extension cannot be built here; the words say what is missing."""


def build_extension(folder: Path) -> Path:
    """The extension's path in `folder`, built if it is not there yet.

    Raises:
        CannotBuildError: a compiler, Python's headers or torch's CPU build are missing, or the compiler failed.
    """
    compiler = shutil.which("g++") or shutil.which("clang++")
    include = Path(sysconfig.get_paths()["include"])
    torch = _torch_folder()
    if (torch / "lib" / "libtorch_cuda.so").exists():
        raise CannotBuildError("this torch is a CUDA build, and the stand-in needs PyTorch's CPU build")
    if compiler is None:
        raise CannotBuildError("no C++ compiler (tools/install-system-packages brings g++)")
    if not (include / "Python.h").exists():
        raise CannotBuildError(f"no Python.h in {include} (Debian: python3-dev)")
    texts = [path.read_bytes() for path in sorted(_SOURCES.rglob("*.*"))]
    digest = hashlib.sha256(
        b"\0".join([*texts, repr(_UNDER).encode(), version("torch").encode(), str(include).encode()])
    ).hexdigest()
    target = folder / digest[:16] / EXTENSION
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        for name, source, calls in _UNDER:
            called = [f"-l:{library}" for library in calls]
            arguments = [
                f"-Wl,-soname,{name}",
                "-s",
                str(_SOURCES / "libraries" / source),
                f"-L{work}",
                *called,
            ]
            _compile(compiler, arguments, Path(work, name))
        headers = (torch / "include", torch / "include/torch/csrc/api/include", include)
        arguments = [
            *_TORCH_FLAGS,
            *(f"-I{place}" for place in headers),
            str(_SOURCES / "cuda_stand_in.cpp"),
            f"-L{work}",
            *(f"-l:{name}" for name, _, _ in _UNDER),
            f"-L{torch / 'lib'}",
            *_TORCH_LIBRARIES,
            f"-Wl,-rpath,{torch / 'lib'}",
        ]
        _compile(compiler, arguments, Path(work, EXTENSION))
        for name in (*(name for name, _, _ in _UNDER), EXTENSION):
            # Who builds at the same time makes the same files.
            os.replace(Path(work, name), target.parent / name)
    return target


def _compile(compiler: str, arguments: list[str], target: Path) -> None:
    command = [compiler, *_FLAGS, *arguments, "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_SECONDS, check=False)
    if done.returncode != 0:
        raise CannotBuildError(f"{compiler} failed: {done.stderr[-2000:]}")


def _torch_folder() -> Path:
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        raise CannotBuildError("torch is not installed")
    return Path(spec.submodule_search_locations[0])
