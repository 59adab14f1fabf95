"""What a framework lacks to train on GPUs here, though it is installed: found without starting a GPU."""

import os
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from shutil import which

Lack = tuple[str, str | None]  # why it cannot run, and what helps

_TOOLKIT = Path("/usr/local/cuda")  # where torch looks last (torch/utils/cpp_extension.py, _find_cuda_home)
# An import of torch and Horovod, which may lie on a cold network file system.
_LIMIT_SECONDS = 60.0
_HOROVOD = "import horovod.torch as hvd; print(int(bool(hvd.cuda_built())))"
_DEEPSPEED, _NO_TOOLKIT = "import deepspeed", "CUDA_HOME"


def lack_on_gpus(framework: str, python: str | None) -> Lack | None:
    """Why that framework cannot train on GPUs here, with the interpreter of its ranks; None if nothing says so."""
    python = python or sys.executable
    if framework == "deepspeed" and not _finds_toolkit(os.environ) and _asks_for_toolkit(python):
        words = "this DeepSpeed looks for nvcc when it is imported on a machine with GPUs, and there is none"
        return words, "install the CUDA toolkit, or set CUDA_HOME to it"
    if framework == "horovod" and _is_built_with_cuda(python) is False:
        words = "this Horovod is built without CUDA, and takes no tensors of GPUs"
        return words, "HOROVOD_GPU_OPERATIONS=NCCL pip install --no-cache-dir --force-reinstall horovod"
    return None


def _finds_toolkit(environment: Mapping[str, str], toolkit: Path = _TOOLKIT) -> bool:
    """Whether torch, and so DeepSpeed, finds a CUDA toolkit."""
    named = environment.get("CUDA_HOME") or environment.get("CUDA_PATH")
    return bool(named) or which("nvcc", path=environment.get("PATH")) is not None or toolkit.exists()


@cache
def _asks_for_toolkit(python: str) -> bool:
    """Whether the import of DeepSpeed fails for want of a toolkit: it does in some builds, and not in others."""
    done = _run(python, _DEEPSPEED)
    return done is not None and done.returncode != 0 and _NO_TOOLKIT in done.stderr


@cache
def _is_built_with_cuda(python: str) -> bool | None:
    """Horovod's own answer; None where it gives none, which its ranks then tell with the reason."""
    done = _run(python, _HOROVOD)
    try:
        return None if done is None or done.returncode else bool(int(done.stdout.split()[-1]))
    except (ValueError, IndexError):
        return None


def _run(python: str, code: str) -> subprocess.CompletedProcess[str] | None:
    """How the interpreter ended with that code; None where it did not start, or not end in time."""
    try:
        return subprocess.run(
            [python, "-c", code],
            capture_output=True,
            text=True,
            timeout=_LIMIT_SECONDS,
            check=False,
            cwd="/",
        )
    except (OSError, subprocess.SubprocessError):
        return None
