"""What is installed in the ranks' interpreter, and what it lacks to train on GPUs here."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from shutil import which

from gpudiag.errors import UsageError
from gpudiag.installed import install_command, pip_command
from gpudiag.reference.training import strategy_facts

# Looking for a module imports nothing; a cold network file system is the slow part.
_LIMIT_SECONDS = 30.0
# Started like the ranks: with PYTHONPATH and the user's packages, without the current folder.
_QUESTION = (
    "import sys; sys.path[:1] == [''] and sys.path.pop(0); import importlib.util, json; "
    "print(json.dumps([name for name in sys.argv[1:] if importlib.util.find_spec(name) is None]))"
)

_CPU_BUILD = (
    "without a GPU, install PyTorch's CPU build first, by the command that"
    " pytorch.org shows under Start Locally for CPU"
)

_TOOLKIT = Path("/usr/local/cuda")  # where torch looks last (torch/utils/cpp_extension.py, _find_cuda_home)
# An import of torch and Horovod, which may lie on a cold network file system.
_TRIAL_SECONDS = 60.0
_TORCH_VERSION = "from importlib.metadata import version; print(version('torch'))"
# Measured on two gloo ranks: torch 2.4 to 2.6 fail with "CUDA error" or "'Stream' object has no attribute",
# 2.7.1 and 2.8.0 train with gradients of twice their size (gloo's reduce_scatter adds, whatever is asked),
# 2.9.1 is right.
_FSDP2_WITHOUT_GPU, _SOUND_FSDP2 = (2, 7), (2, 9)
_SUMMED_GRADIENTS = (
    "sums its gradients on the CPU: gloo's reduce_scatter adds where FSDP2 asks for the average"
)
_HOROVOD = "import horovod.torch as hvd; print(int(bool(hvd.cuda_built())))"


def find_interpreter(python: str, named: str) -> str:
    """The path of an interpreter, by path or name; `named`: the flag. Raises UsageError: none runs."""
    found = which(python)
    if found is None:
        raise UsageError(f"{named} is not there, or cannot be run", hint=_interpreter_hint(python))
    return found


def _interpreter_hint(python: str) -> str:
    inside = os.path.join(python, "bin", "python")
    return f"name the interpreter in it: {inside}" if which(inside) else "name the interpreter of your job"


def absent_modules(modules: Sequence[str], python: str | None = None) -> tuple[str, ...]:
    """Those of `modules` that the interpreter (default: ours) cannot import. Raises UsageError: it fails."""
    if python is None:
        return tuple(name for name in modules if importlib.util.find_spec(name) is None)
    return _ask(python, tuple(modules))


@cache
def _ask(python: str, modules: tuple[str, ...]) -> tuple[str, ...]:
    hint = _interpreter_hint(python)
    command = [python, "-c", _QUESTION, *modules]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_SECONDS, check=True)
        return tuple(json.loads(done.stdout))
    except OSError as error:
        raise UsageError(f"--python {python}: {error.strerror}", hint=hint) from None
    except subprocess.TimeoutExpired:
        raise UsageError(
            f"--python {python} does not answer within {_LIMIT_SECONDS:.0f} s", hint=hint
        ) from None
    except (subprocess.CalledProcessError, ValueError, RecursionError):
        raise UsageError(f"--python {python} is not a working Python", hint=hint) from None


def require_torch(command: str, python: str | None = None) -> None:
    """Return if the interpreter (default: ours) has torch, without importing it. Raises UsageError."""
    if not absent_modules(("torch",), python):
        return
    if python is None:
        raise UsageError(
            f"torch is not installed, and {command} runs on it",
            hint=f"{install_command('torch')}; {_CPU_BUILD}",
        )
    raise UsageError(
        f"torch is not installed for --python {python}, and {command} runs on it",
        hint=f"name the interpreter of your job, or: {pip_command('torch', python=python)}",
    )


Lack = tuple[str, str | None]  # why it cannot run, and what helps

_DEEPSPEED, _NO_TOOLKIT = "import deepspeed", "CUDA_HOME"


def lack_on_gpus(framework: str, python: str | None) -> Lack | None:
    """Why that framework cannot train on GPUs here, in its ranks' interpreter; None if no reason is known."""
    python = python or sys.executable
    if framework == "deepspeed" and not _finds_toolkit(os.environ) and _asks_for_toolkit(python):
        words = "this DeepSpeed looks for nvcc when it is imported on a machine with GPUs, and finds none"
        return words, "install the CUDA toolkit, or set CUDA_HOME to it"
    if framework == "horovod" and _is_built_with_cuda(python) is False:
        words = "this Horovod is built without CUDA, and cannot use GPU tensors"
        horovod = strategy_facts()[framework]
        return words, horovod.install_command(framework, python, "HOROVOD_GPU_OPERATIONS=NCCL")
    return None


def lack_on_cpu(strategy: str, python: str | None) -> Lack | None:
    """Why that strategy cannot train on the CPU in its ranks' interpreter; None if unknown."""
    if strategy != "fsdp2":
        return None
    version = _version_of_torch(python or sys.executable)
    if version is None or version >= _SOUND_FSDP2:
        return None
    words = "asks for a GPU's streams" if version < _FSDP2_WITHOUT_GPU else _SUMMED_GRADIENTS
    installs = pip_command(f"torch>={_dotted(_SOUND_FSDP2)}", python=python)
    return f"FSDP2 of torch {_dotted(version)} {words}", installs


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


@cache
def _version_of_torch(python: str) -> tuple[int, int] | None:
    """The first two numbers of torch's version; None if it gives none."""
    done = _run(python, _TORCH_VERSION)
    found = None if done is None else re.match(r"(\d+)\.(\d+)", done.stdout)
    return None if found is None else (int(found[1]), int(found[2]))


def _finds_toolkit(environment: Mapping[str, str], toolkit: Path = _TOOLKIT) -> bool:
    """Whether torch, and so DeepSpeed, finds a CUDA toolkit."""
    named = environment.get("CUDA_HOME") or environment.get("CUDA_PATH")
    return bool(named) or which("nvcc", path=environment.get("PATH")) is not None or toolkit.exists()


@cache
def _asks_for_toolkit(python: str) -> bool:
    """Whether importing DeepSpeed fails without a CUDA toolkit, as some builds do."""
    done = _run(python, _DEEPSPEED)
    return done is not None and done.returncode != 0 and _NO_TOOLKIT in done.stderr


@cache
def _is_built_with_cuda(python: str) -> bool | None:
    """Horovod's own answer; None if it gives none: its ranks then report why."""
    done = _run(python, _HOROVOD)
    try:
        return None if done is None or done.returncode else bool(int(done.stdout.split()[-1]))
    except (ValueError, IndexError):
        return None


def _run(python: str, code: str) -> subprocess.CompletedProcess[str] | None:
    """How the interpreter ended when run with `code`; None if it did not start, or did not end in time."""
    try:
        return subprocess.run(
            [python, "-c", code],
            capture_output=True,
            text=True,
            timeout=_TRIAL_SECONDS,
            check=False,
            cwd="/",
        )
    except (OSError, subprocess.SubprocessError):
        return None
