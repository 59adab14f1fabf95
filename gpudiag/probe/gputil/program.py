"""The real `GPUtil.getGPUs()`, run as a program of its own: the only file that imports GPUtil.

`python program.py` writes JSON lines to file descriptor 3, as `guard.start_program` expects:

    ["not_installed"]                    there is no GPUtil
    ["absent", WORDS]                    nvidia-smi is not there
    ["gpus", [{...}, ...], {...}]        what getGPUs() returned, and the run of nvidia-smi behind it
    ["finished", SECONDS]

It imports nothing of gpudiag, so that it can be started by path and starts fast.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import types
from ctypes import CDLL
from time import monotonic
from typing import Any

_RESULT_FD = 3
_PR_SET_PDEATHSIG, _SIGKILL = 1, 9
_MEMBERS = ("id", "uuid", "load", "memoryTotal", "memoryUsed", "memoryFree", "driver", "name")


def main() -> None:
    """Write GPUtil's answer, and how nvidia-smi answered it."""
    started = monotonic()
    if shutil.which("nvidia-smi") is None:  # GPUtil would return an empty list
        _emit(["absent", "nvidia-smi is not on PATH"])
    else:
        _emit(_ask())
    _emit(["finished", monotonic() - started])


def _ask() -> list[Any]:
    gputil = _load()
    if gputil is None:
        return ["not_installed"]
    runs: list[dict[str, Any]] = []
    gputil.Popen = _recording(gputil.Popen, runs)
    try:
        gpus, error = gputil.getGPUs(), None
    except Exception as raised:  # noqa: BLE001 - any sentence of nvidia-smi makes GPUtil raise
        gpus, error = None, f"{type(raised).__name__}: {raised}"
    run = runs[0] if runs else {"status": None, "lines": []}
    if gpus is None:
        gpus = [gpu for line in run["lines"] for gpu in _parse_alone(gputil, line)]
    return ["gpus", [_plain(gpu) for gpu in gpus], {**run, "error": error}]


def _load() -> Any:
    """The module GPUtil.GPUtil; None if it is not installed.

    GPUtil 1.4.0 imports distutils, gone from Python 3.12, for Windows only: a stub serves.
    """
    spawn = types.ModuleType("distutils.spawn")
    spawn.find_executable = shutil.which  # type: ignore[attr-defined]
    distutils = types.ModuleType("distutils")
    distutils.spawn = spawn  # type: ignore[attr-defined]
    sys.modules.update({"distutils": distutils, "distutils.spawn": spawn})
    try:
        from GPUtil import GPUtil
    except ModuleNotFoundError as error:
        if error.name != "GPUtil":
            raise
        return None
    return GPUtil


def _recording(popen: Any, runs: list[dict[str, Any]]) -> Any:
    """A subclass of GPUtil's Popen that keeps status and output in `runs`; nvidia-smi dies with us."""

    class RecordingPopen(popen):  # type: ignore[misc]
        def __init__(self, argv: Any, **options: Any) -> None:
            super().__init__(argv, preexec_fn=_die_with_parent, **options)

        def communicate(self, *arguments: Any, **options: Any) -> Any:
            output, errors = super().communicate(*arguments, **options)
            lines = output.decode(errors="replace").splitlines()
            runs.append({"status": self.returncode, "lines": lines})
            return output, errors

    return RecordingPopen


def _parse_alone(gputil: Any, line: str) -> list[Any]:
    """The GPUs that GPUtil reads from one line of nvidia-smi; one bad line among many makes it drop all."""

    class OneLine:
        def __init__(self, argv: Any, **options: Any) -> None:
            pass

        def communicate(self) -> tuple[bytes, None]:
            return f"{line}{os.linesep}".encode(), None

    gputil.Popen = OneLine
    try:
        gpus: list[Any] = gputil.getGPUs()
    except Exception:  # noqa: BLE001 - a sentence, or a total of 0; the line itself is reported
        return []
    return gpus


def _plain(gpu: Any) -> dict[str, Any]:
    """A GPU's members as JSON has them: None for NaN."""
    members = {member: getattr(gpu, member) for member in _MEMBERS}
    return {member: None if value != value else value for member, value in members.items()}


def _die_with_parent() -> None:
    CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)


def _emit(message: list[Any]) -> None:
    os.write(_RESULT_FD, json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    sys.path.pop(0)  # this file's own directory, whose names are no top-level modules
    main()
