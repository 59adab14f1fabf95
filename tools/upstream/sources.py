"""Which table of the repository is held against which source of upstream."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from gpudiag.lint.rules.deprecated_name import INSTEAD
from gpudiag.reference.cuda_errors import cuda_errors
from gpudiag.reference.software import minimum_drivers, torch_variables
from gpudiag.reference.tables import read_table
from gpudiag.reference.xid import sxids, xids
from gpudiag.toml import tomllib
from tests.cuda_stand_in.forks import MARKING
from tools.upstream import parsers
from tools.upstream.compare import Settled
from tools.upstream.parsers import Facts
from tools.upstream.reach import Reach

_SETTLED: dict[str, Any] = tomllib.loads(Path(__file__).with_name("settled.toml").read_text())
_NVML_SYMBOLS = Path(str(resources.files("gpudiag.reference"))) / "nvml_symbols.json"
_NCCL = "nccl_variables.toml"
# The bucket of NVIDIA's catalogue for each of our actions; where the two differ on purpose, settled.toml has
# it.
_BUCKETS = {
    "none": "IGNORE",
    "watch": "IGNORE",
    "restart_application": "RESTART_APP",
    "check_application": "CHECK_APP/CUDA",
    "reset_gpu": "RESET_GPU",
    "restart_machine": "RESTART_BM",
    "restart_virtual_machine": "RESTART_VM",
    "check_mechanics": "CHECK_MECHANICALS",
    "update_software": "UPDATE_SWFW",
    "contact_support": "CONTACT_SUPPORT",
}


@dataclass(frozen=True, slots=True)
class Source:
    """One comparison: what the repository holds, and how to read the same of upstream."""

    name: str
    table: str  # the file to change when upstream moved
    held: Callable[[], Facts]
    read: Callable[[Reach], Facts]


def settled_of(name: str) -> Settled:
    """The differences of that source that were looked at already."""
    entry: dict[str, Any] = _SETTLED.get(name, {})
    return Settled(
        frozenset(map(str, entry.get("left_out", ()))),
        frozenset(map(str, entry.get("kept", ()))),
        entry.get("values", {}),
    )


def _releases(reach: Reach) -> Facts:
    """The newest version of each package that the tables were read from, and of the open driver."""
    held = _SETTLED["releases"]
    versions = {name: reach.read_version(name) for name in held if name != _DRIVER}
    makefile = reach.read_github(_DRIVER, "main", "version.mk")
    return versions | {_DRIVER: makefile.partition("NVIDIA_VERSION =")[2].split("\n")[0].strip()}


_DRIVER = "NVIDIA/open-gpu-kernel-modules"


def _of_torch(path: str, parse: Callable[[str], Facts]) -> Callable[[Reach], Facts]:
    """The facts of a file of torch's newest release."""
    return lambda reach: parse(reach.read_github("pytorch/pytorch", f"v{reach.read_version('torch')}", path))


def _torch_variables(reach: Reach) -> Facts:
    folder = "torch/csrc/distributed/c10d"
    headers = [_of_torch(f"{folder}/{name}.hpp", parsers.parse_torch_variables) for name in _HEADERS]
    return {name: value for header in headers for name, value in header(reach).items()}


_HEADERS = ("ProcessGroupNCCL", "FlightRecorder", "NCCLUtils")


def _cuda_errors(reach: Reach) -> Facts:
    include = "nvidia/cu13/include"
    texts = reach.read_members("nvidia-cuda-runtime", (f"{include}/cuda.h", f"{include}/driver_types.h"))
    return parsers.parse_cuda_errors("\n".join(text.decode(errors="replace") for text in texts))


def _held_cuda_errors() -> Facts:
    return {
        name: str(error.number)
        for error in cuda_errors().values()
        for name in (error.driver_name, error.runtime_name)
        if name
    }


def _held_nvml() -> Facts:
    symbols = json.loads(_NVML_SYMBOLS.read_text())
    constants = {name: str(value) for name, value in symbols["constants"].items()}
    return constants | dict.fromkeys(symbols["functions"], "function")


SOURCES = (
    Source(
        "releases",
        "tools/upstream/settled.toml, when all other sources agree",
        lambda: _SETTLED["releases"],
        _releases,
    ),
    Source(
        "nvml",
        "python -m tools.generate_nvml_reference, under the new"
        " nvidia-ml-py; gpudiag/reference/vocabulary.py",
        _held_nvml,
        lambda reach: parsers.parse_pynvml(reach.read_members("nvidia-ml-py", ("pynvml.py",))[0].decode()),
    ),
    Source(
        "xid-driver",
        "gpudiag/reference/xid.toml",
        lambda: dict.fromkeys(map(str, xids()), ""),
        lambda reach: dict.fromkeys(
            parsers.parse_driver_xids(
                reach.read_github(_DRIVER, "main", "src/common/sdk/nvidia/inc/nverror.h")
            ),
            "",
        ),
    ),
    Source(
        "xid-catalogue",
        "gpudiag/reference/xid.toml",
        lambda: {str(code): _BUCKETS.get(xid.immediate, xid.immediate) for code, xid in xids().items()},
        lambda reach: parsers.parse_xid_catalogue(
            reach.read_github(
                "leptonai/gpud", "main", "components/accelerator/nvidia/xid/catalog_generated.go"
            )
        ),
    ),
    Source(
        "sxid",
        "gpudiag/reference/sxid.toml",
        lambda: dict.fromkeys(map(str, sxids()), ""),
        lambda reach: dict.fromkeys(
            parsers.parse_sxids(
                reach.read_github(
                    "NVIDIA/NVSentinel",
                    "main",
                    "distros/kubernetes/nvsentinel/files/sxiderrorsmapping.csv",
                )
            ),
            "",
        ),
    ),
    Source(
        "nccl-variables",
        "gpudiag/reference/nccl_variables.toml",
        lambda: dict.fromkeys(read_table(_NCCL)["known"], ""),
        lambda reach: parsers.parse_nccl_words(
            reach.read_members("nvidia-nccl-cu13", ("nvidia/nccl/lib/libnccl.so.2",))[0]
        ),
    ),
    Source(
        "torch-variables",
        "gpudiag/reference/nccl_variables.toml, [torch]",
        lambda: dict.fromkeys(torch_variables(), ""),
        _torch_variables,
    ),
    Source(
        "torch-forks",
        "tests/cuda_stand_in/forks.py",
        lambda: dict.fromkeys(MARKING, ""),
        _of_torch("torch/csrc/cuda/Module.cpp", parsers.parse_marking_bindings),
    ),
    Source(
        "torch-deprecated",
        "gpudiag/lint/rules/deprecated_name.py",
        lambda: {
            name.removeprefix("torch.distributed."): ""
            for name in INSTEAD
            if name.count(".") == 2 and name.startswith("torch.distributed.")
        },
        _of_torch("torch/distributed/distributed_c10d.py", parsers.parse_deprecated),
    ),
    Source(
        "torch-builds",
        "gpudiag/reference/cuda_compatibility.toml",
        lambda: dict.fromkeys(read_table("cuda_compatibility.toml")["torch"]["builds"], ""),
        _of_torch(".github/scripts/generate_binary_build_matrix.py", parsers.parse_torch_builds),
    ),
    Source(
        "cuda-drivers",
        "gpudiag/reference/cuda_compatibility.toml",
        lambda: {str(major): driver.split(".")[0] for major, driver in minimum_drivers().items()},
        lambda reach: parsers.parse_minimum_drivers(
            reach.read_page(
                "cuda-minor-version-compatibility.html",
                "https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html",
            )
        ),
    ),
    Source("cuda-errors", "gpudiag/reference/cuda_errors.toml", _held_cuda_errors, _cuda_errors),
)
