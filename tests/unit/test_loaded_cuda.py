"""Which NCCL torch calls, and whether CUDA was started here, with libraries that a C compiler makes of a few
lines.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpudiag import loaded_cuda

COMPILER = shutil.which("cc") or shutil.which("gcc")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler")

_NCCL = "int ncclGetVersion(int *version) {{ *version = {code}; return 0; }}"
_TORCH = "int ncclGetVersion(int *); int asks(void) { int v; return ncclGetVersion(&v) + v; }"
_DRIVER = (
    "static int s; int cuInit(int f) { s = 1; return 0; } int cuDeviceGetCount(int *n) { return s ? 0 : 3; }"
)
_PROGRAM = """
import ctypes, json, sys
sys.path.insert(0, sys.argv[1])
import torch
from gpudiag.loaded_cuda import built_nccl, loaded_nccl
print(json.dumps([*loaded_nccl(torch), built_nccl(torch)]))
"""
_FAKE = """
import ctypes, os
from types import SimpleNamespace
version = SimpleNamespace(cuda="13.0")
cuda = SimpleNamespace(nccl=SimpleNamespace(version=lambda: (2, 28, 9)))
_own = os.path.join(os.path.dirname(__file__), "lib", "libtorch_cuda.so")
_library = ctypes.CDLL(_own) if os.path.exists(_own) else None
"""


def _compile(source: str, target: Path, *more: str) -> Path:
    assert COMPILER is not None
    target.parent.mkdir(parents=True, exist_ok=True)
    target.with_suffix(".c").write_text(source)
    soname = f"-Wl,-soname,{target.name}"
    subprocess.run(
        [COMPILER, "-shared", "-fPIC", soname, str(target.with_suffix(".c")), *more, "-o", str(target)],
        check=True,
    )
    return target


def _torch(folder: Path, *, nccl: str | None = None, bundled: str | None = None) -> Path:
    """A torch in `folder` that calls an NCCL beside it, or has one built in, or none."""
    package = folder / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(_FAKE)
    if nccl is not None:
        library = _compile(_NCCL.format(code=nccl), folder / "nvidia" / "libnccl.so.2")
        rpath = f"-Wl,-rpath,{library.parent}"
        _compile(
            _TORCH, package / "lib" / "libtorch_cuda.so", f"-L{library.parent}", "-l:libnccl.so.2", rpath
        )
    if bundled is not None:
        _compile(_NCCL.format(code=bundled), package / "lib" / "libtorch_cuda.so")
    return folder


def _asked(folder: Path, **variables: str) -> list[str | None]:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(folder)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    answer: list[str | None] = json.loads(done.stdout)
    return answer


def test_it_is_the_library_that_torch_was_linked_with(tmp_path):
    folder = _torch(tmp_path, nccl="23203")
    assert _asked(folder) == ["2.32.3", str(tmp_path / "nvidia" / "libnccl.so.2"), "2.28.9"]


def test_a_preloaded_library_comes_first(tmp_path):
    folder = _torch(tmp_path / "torch", nccl="22809")
    other = _compile(_NCCL.format(code="23203"), tmp_path / "mine" / "libnccl.so.2")
    assert _asked(folder, LD_PRELOAD=str(other)) == ["2.32.3", str(other), "2.28.9"]


def test_one_that_is_a_part_of_torch_is_found_there(tmp_path):
    version, file, built = _asked(_torch(tmp_path, bundled="22809"))
    assert (version, built) == ("2.28.9", "2.28.9")
    assert str(file).endswith("libtorch_cuda.so")


def test_where_none_is_found_the_build_tells(tmp_path):
    assert _asked(_torch(tmp_path)) == ["2.28.9", None, "2.28.9"]


@pytest.mark.parametrize(
    ("code", "text"), [(2304, "2.3.4"), (2708, "2.7.8"), (21005, "2.10.5"), (23203, "2.32.3")]
)
def test_a_version_code_is_read_as_nccl_makes_it(code, text):
    assert loaded_cuda._version(code) == text


def test_cuda_has_started_only_after_it_was(tmp_path):
    driver = _compile(_DRIVER, tmp_path / "libcuda.so.1")
    program = f"""
import ctypes
from gpudiag.loaded_cuda import driver_has_started
print(driver_has_started())
library = ctypes.CDLL({str(driver)!r})
print(driver_has_started())
library.cuInit(0)
print(driver_has_started())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False", "True"]


def test_words_of_a_fork_are_known():
    spoken = "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing"
    assert loaded_cuda.speaks_of_a_fork(spoken)
    assert loaded_cuda.speaks_of_a_fork("CUDA error: initialization error")
    assert not loaded_cuda.speaks_of_a_fork("CUDA error: out of memory")
