"""What the stand-in is told, by variables that reach every process of a run."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FAULTS = ("stuck", "error", "oom", "no_peer", "exclusive")

NOTICE = "CUDA STAND-IN: this proves calls, flow and words; no GPU was used, and no speed is one's"


@dataclass(frozen=True)
class GpuFault:
    """What is wrong with one GPU of the machine: from its operation `after` on, or always."""

    kind: str
    gpu: int
    after: int = 0


@dataclass(frozen=True)
class Settings:
    """The stand-in's machine beside what the simulated NVML says of it."""

    library: str
    # The simulated machine's GPUs as CUDA lists them; None for one without a scenario.
    torch_document: str | None
    mig_instances: tuple[Mapping[str, Any], ...]  # all of the machine's; CUDA lists the first
    lock_folder: str
    faults: tuple[GpuFault, ...]
    free_bytes: int
    nccl_built_with: str  # the version that torch was built with; the loaded library's is its own affair
    runtime_version: str
    real_sizes: bool
    kernel_microseconds: int
    asked_by_import: str  # what `import torch` itself calls, in Python
    start_seconds: float  # that CUDA's start takes in a process
    log: str | None  # the file that gets a line for each import of torch and each start of CUDA


def read_settings(environment: Mapping[str, str] | None = None) -> Settings:
    """The settings of this process. Raises ValueError: a fault is none that the stand-in knows."""
    variables = os.environ if environment is None else environment
    library = variables["CUDA_STAND_IN"]
    return Settings(
        library=library,
        torch_document=variables.get("CUDA_STAND_IN_TORCH"),
        mig_instances=tuple(json.loads(variables.get("CUDA_STAND_IN_MIG", "[]"))),
        lock_folder=variables.get("CUDA_STAND_IN_LOCKS", os.path.dirname(library)),
        faults=parse_faults(variables.get("CUDA_STAND_IN_FAULTS", "")),
        free_bytes=int(variables.get("CUDA_STAND_IN_FREE_BYTES", 5 << 30)),
        nccl_built_with=variables.get("CUDA_STAND_IN_NCCL_BUILT", "2.27.5"),
        runtime_version=variables.get("CUDA_STAND_IN_RUNTIME", "12.8"),
        real_sizes=variables.get("CUDA_STAND_IN_SIZES") == "real",
        kernel_microseconds=int(variables.get("CUDA_STAND_IN_KERNEL_MICROSECONDS", "0")),
        asked_by_import=variables.get("CUDA_STAND_IN_IMPORT", ""),
        start_seconds=float(variables.get("CUDA_STAND_IN_START_SECONDS", "0")),
        log=variables.get("CUDA_STAND_IN_LOG"),
    )


def note(settings: Settings, what: str) -> None:
    """Add what this process does to the log, if there is one: the words and the pid."""
    if settings.log is not None:
        with open(settings.log, "a") as log:
            log.write(f"{what} {os.getpid()}\n")


def parse_faults(text: str) -> tuple[GpuFault, ...]:
    """The faults in `stuck:1@40,no_peer:2`: kind, GPU of the machine, and the operation that it happens to.

    Raises:
        ValueError: a kind is not known, or a number is none.
    """
    found = []
    for part in filter(None, text.split(",")):
        kind, _, where = part.partition(":")
        gpu, _, after = where.partition("@")
        if kind not in FAULTS:
            raise ValueError(f"{part}: a fault of the stand-in is one of {', '.join(FAULTS)}")
        found.append(GpuFault(kind, int(gpu), int(after or 1)))
    return tuple(found)
