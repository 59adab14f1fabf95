"""What this machine and its Python have for the steps, found without touching a GPU here."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gpudiag.probe.job.py_spy import find_py_spy
from tools.confirm_on_gpu.report import GpuSeen
from tools.confirm_on_gpu.step import Need

# What gpudiag or the steps import, and what goes without it.
_MODULES = {
    "torch": "no NCCL, no speeds, no training: everything that needs CUDA",
    "pynvml": "NVML cannot be asked: pip install nvidia-ml-py",
    "click": "only `gpudiag list --json` starts: pip install click",
    "pytest": "the tests of tests/gpu run by tools/confirm_on_gpu/without_pytest.py",
    "sqlalchemy": "gpudiag keeps no history: checks that compare with earlier runs are skipped",
    "GPUtil": "the third source is not asked",
    "uvicorn": "the service does not start: pip install 'gpudiag[serve]'",
    "nvitop": "no start time beside it",
    "gpustat": "no start time beside it",
}


def missing_modules() -> tuple[str, ...]:
    """What this Python has not, each with what goes without it."""
    missing = {name: cost for name, cost in _MODULES.items() if not has_module(name)}
    if find_py_spy() is None:
        missing["py-spy"] = "no look at a job that hangs: pip install py-spy"
    return tuple(f"{name}: {cost}" for name, cost in missing.items())


def has_module(name: str) -> bool:
    """Whether this Python could import it; nothing is imported."""
    return find_spec(name) is not None


def traces_of_a_gpu(root: Path = Path("/")) -> tuple[str, ...]:
    """Where the machine shows an NVIDIA GPU or its driver, read from plain files."""
    places = [path for path in (root / "dev/dxg", root / "proc/driver/nvidia/version") if path.exists()]
    places += sorted((root / "dev").glob("nvidia[0-9]*"))
    for vendor in sorted((root / "sys/bus/pci/devices").glob("*/vendor")):
        kind = vendor.with_name("class")
        if _is(vendor, "0x10de") and (_is(kind, "0x0300") or _is(kind, "0x0302")):
            places.append(vendor.parent)
    return tuple(str(path) for path in places)


def _is(path: Path, start: str) -> bool:
    try:
        return path.read_text().startswith(start)
    except OSError:
        return False


def gpus_of(snapshot: Mapping[str, Any]) -> tuple[GpuSeen, ...]:
    """The GPUs of a `gpudiag list --json` document."""
    return tuple(
        GpuSeen(row["nvml_index"], row["name"], row["uuid"], row["bus_id"])
        for row in snapshot.get("devices", ())
    )


def is_stand_in(snapshot: Mapping[str, Any]) -> bool:
    """Whether torch's CUDA is the stand-in of the tests, which shows flow and words and confirms nothing."""
    return str((snapshot.get("torch") or {}).get("version", "")).endswith("stand.in")


def cuda_gpus(snapshot: Mapping[str, Any]) -> int:
    """On how many GPUs torch starts a context."""
    return sum(
        view["source"] == "torch" and view.get("context_starts") is True for view in snapshot.get("views", ())
    )


def first_gpu(snapshot: Mapping[str, Any]) -> str:
    """What CUDA_VISIBLE_DEVICES must hold so that torch sees only the first GPU that it sees now."""
    for view in snapshot.get("views", ()):
        if view["source"] == "torch" and view["source_index"] == 0 and view["uuid"]:
            return str(view["uuid"])
    return os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0] or "0"


def is_met(need: Need, snapshot: Mapping[str, Any], folder: Path) -> bool:
    """Whether the machine, its Python, or an earlier step has what a step needs."""
    match need:
        case Need.CLICK | Need.PYNVML:
            return has_module(need.value)
        case Need.CUDA:
            return cuda_gpus(snapshot) > 0
        case Need.TWO_GPUS:
            return cuda_gpus(snapshot) > 1
        case Need.NVIDIA_SMI:
            return shutil.which("nvidia-smi") is not None
        case Need.COMPILER:
            return bool(os.environ.get("CC") or shutil.which("cc") or has_module("ziglang"))
        case Need.MACHINE:
            return bool(snapshot)
        case Need.CAPTURE:
            return (folder / "nvidia-smi.xml").exists()
        case Need.SPEEDS:
            return (folder / "preflight.json").exists() or (folder / "bandwidth.json").exists()
        case Need.SHARING:
            return shares_gpus(folder) is True
        case Need.NO_SHARING:
            return shares_gpus(folder) is not True
        case Need.PY_SPY:
            return find_py_spy() is not None
        case Need.SERVICE:
            return all(has_module(name) for name in ("uvicorn", "starlette", "sqlalchemy"))


def shares_gpus(folder: Path) -> bool | None:
    """Whether NCCL lets two ranks share a GPU, as the step that tried it saw; None where it did not run."""
    works: bool | None = _pair(folder).get("works")
    return works


def loaded_nccl(folder: Path) -> str | None:
    """The version of the NCCL library that torch loads, as that step asked it."""
    version: str | None = _pair(folder).get("version")
    return version


def _pair(folder: Path) -> dict[str, Any]:
    try:
        answer = json.loads((folder / "nccl-pair.json").read_text().strip().splitlines()[-1])
    except (OSError, ValueError, LookupError):
        return {}
    return answer if isinstance(answer, dict) else {}


def why_not(need: Need, snapshot: Mapping[str, Any]) -> str:
    """Why a need is not met, as far as it is known."""
    if need is Need.CUDA:
        return _why_no_cuda(snapshot)
    if need is Need.TWO_GPUS:
        return f"torch can use {cuda_gpus(snapshot)} here"
    if need is Need.SHARING:
        return "two bare ranks could not share one here: see nccl_two_ranks_bare"
    if need is Need.NO_SHARING:
        return "two ranks share one here, and show more"
    if need is Need.SERVICE:
        return "pip install 'gpudiag[serve]'"
    if need in (Need.MACHINE, Need.CAPTURE, Need.SPEEDS):
        return "the step before it did not leave it"
    return f"not found by {sys.executable}" if need in (Need.CLICK, Need.PYNVML) else "not found"


def _why_no_cuda(snapshot: Mapping[str, Any]) -> str:
    for status in snapshot.get("sources", ()):
        if status["name"] == "torch" and status["state"] != "ok":
            return str(status["reason"] or status["state"])
    for view in snapshot.get("views", ()):
        if view["source"] == "torch":
            return str(view.get("missing_detail", {}).get("context_starts", "CUDA starts on no GPU"))
    return "torch could not be asked" if not snapshot else "torch counts no GPU"
