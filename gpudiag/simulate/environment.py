"""The environment of programs on a simulated machine: its library and tools first, no trace of the host."""

import os
from collections.abc import Mapping
from pathlib import Path

from gpudiag.simulate.nvml.library import LIBRARY_NAME

# Variables that allocate the real machine's GPUs; the scenario sets its own.
_ALLOCATION_NAMES = frozenset(
    {
        "CUDA_DEVICE_ORDER",
        "CUDA_VISIBLE_DEVICES",
        "GPU_DEVICE_ORDINAL",
        "HIP_VISIBLE_DEVICES",
        "NVIDIA_DRIVER_CAPABILITIES",
        "NVIDIA_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
    }
)
_ALLOCATION_PREFIXES = ("SLURM_", "NVIDIA_REQUIRE_", "GPUDIAG_SIMULATED", "KUBERNETES_")
_NVIDIA_SMI = "nvidia-smi"


def build_environment(
    outside: Mapping[str, str], folder: Path, scenario_name: str, scenario_environment: Mapping[str, str]
) -> dict[str, str]:
    """The whole environment for a program on the machine whose files are in `folder`."""
    environment = {name: value for name, value in outside.items() if not is_allocation_variable(name)}
    paths = [str(folder / "bin"), *_paths_without_nvidia_smi(outside.get("PATH", os.defpath), folder)]
    libraries = [str(folder / "lib"), *filter(None, [outside.get("LD_LIBRARY_PATH")])]
    return environment | {
        "PATH": ":".join(paths),
        "LD_LIBRARY_PATH": ":".join(libraries),
        "GPUDIAG_SIMULATED": scenario_name,
        "GPUDIAG_HOST_ROOT": str(folder / "root"),
        "GPUDIAG_SIMULATED_TORCH": str(folder / "torch.json"),
        **scenario_environment,
    }


def is_allocation_variable(name: str) -> bool:
    """Whether the variable allocates GPUs, or belongs to a simulated machine around this one."""
    if name == "GPUDIAG_SIMULATED_CALL_LOG":
        return False  # set by the caller who starts the session
    return name in _ALLOCATION_NAMES or name == "GPUDIAG_HOST_ROOT" or name.startswith(_ALLOCATION_PREFIXES)


def _paths_without_nvidia_smi(path: str, folder: Path) -> list[str]:
    """The real machine's PATH; a folder with an nvidia-smi is replaced by links to its other programs.

    Otherwise a machine without nvidia-smi, simulated on one that has it, would find that one.
    """
    result = []
    for number, place in enumerate(filter(None, path.split(":"))):
        if not os.path.lexists(os.path.join(place, _NVIDIA_SMI)):
            result.append(place)
            continue
        shadow = folder / "path" / str(number)
        shadow.mkdir(parents=True, exist_ok=True)
        for entry in os.scandir(place):
            if not entry.name.startswith(_NVIDIA_SMI) and not os.path.lexists(shadow / entry.name):
                os.symlink(os.path.join(os.path.abspath(place), entry.name), shadow / entry.name)
        result.append(str(shadow))
    return result


def is_library_outside() -> bool:
    """Whether the dynamic linker would find a real NVML library on this machine."""
    try:
        with open("/etc/ld.so.cache", "rb") as cache:
            if LIBRARY_NAME.encode() in cache.read():
                return True
    except OSError:
        pass
    multiarch = f"{os.uname().machine}-linux-gnu"
    folders = ["/lib", "/usr/lib", "/lib64", "/usr/lib64", f"/lib/{multiarch}", f"/usr/lib/{multiarch}"]
    folders += os.environ.get("LD_LIBRARY_PATH", "").split(":")
    return any(os.path.lexists(os.path.join(place, LIBRARY_NAME)) for place in folders if place)
