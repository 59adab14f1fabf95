"""Which of the machine's GPUs this process was given, and the variables that show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpudiag.model.host import Machine
from gpudiag.model.reading import Missing
from gpudiag.model.untrusted_text import mask_text

# What Slurm sets for a job step: srun(1), "OUTPUT ENVIRONMENT VARIABLES".
_SLURM_LISTS = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
_SLURM_COUNTS = ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE")

_NAMES = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
    "GPU_DEVICE_ORDINAL",
    "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "KUBERNETES_SERVICE_HOST",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
)

# How much of a GPU's memory a program is shown, and by whom (reference/memory_limiters.toml).
_LIMITS = (
    "CUDA_DEVICE_MEMORY_LIMIT",
    "CUDA_DEVICE_SM_LIMIT",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    "TENCENT_COM_VCUDA_MEMORY",
    "ALIYUN_COM_GPU_MEM",
    "RUNAI_GPU_MEMORY_LIMIT",
    "POD_MANAGER_PORT",
    "LD_PRELOAD",
)


def explain_given(machine: Machine, listed: int) -> str | None:
    """Why NVML lists only `listed` of the GPUs on the bus, if this process was given that many; else None."""
    given = _given_by_slurm(machine)
    if given is not None and given[1] == listed:
        return f"Slurm gave this job {listed} ({given[0]}), and its device cgroup hides the others"
    if given is None and not isinstance(machine.job_cgroup, Missing):
        return f"this process is in the control group of {machine.job_cgroup}, which may hide the others"
    named = machine.allocation.get("NVIDIA_VISIBLE_DEVICES", "")
    by_name = bool(named) and named not in ("all", "void", "none") and not named.startswith("/")
    if by_name and len(_tokens(named)) == listed:
        return f"NVIDIA_VISIBLE_DEVICES names {listed}; /sys shows all GPUs of the host"
    if machine.container is not None and device_node_count(machine) == listed:
        return (
            f"this container ({machine.container.words}) was given {listed}; /sys shows all GPUs of its host"
        )
    if 0 < device_node_count(machine) == listed:
        return (
            f"/dev has the nodes of {listed} GPUs: the others were not given to"
            " this system (LXC, a device cgroup)"
        )
    return None


def was_given_any(machine: Machine) -> bool:
    """Whether this process may use a GPU on the PCI bus: a container's /sys shows every GPU of its host."""
    return machine.container is None or device_node_count(machine) > 0


def _given_by_slurm(machine: Machine) -> tuple[str, int] | None:
    """The variable with the number of GPUs that Slurm gave on this node, and the count; None if unset."""
    for name in _SLURM_LISTS:
        if name in machine.allocation:
            return name, len(_tokens(machine.allocation[name]))
    for name in _SLURM_COUNTS:
        count = machine.allocation.get(name, "").rpartition(":")[2]
        if count.isdecimal():
            return name, int(count)
    return None


def device_node_count(machine: Machine) -> int:
    """The number of /dev/nvidiaN nodes; 0 where /dev cannot be listed."""
    if isinstance(machine.device_nodes, Missing):
        return 0
    return sum(1 for node in machine.device_nodes if node.removeprefix("/dev/nvidia").isdecimal())


def cuda_visible(machine: Machine, uuids: Sequence[str | None]) -> list[int] | None:
    """The indices in `uuids` that CUDA_VISIBLE_DEVICES shows, in its order; None if it is unset.

    CUDA takes ordinals and unique UUID prefixes, stops at the first unknown entry, and shows none for one
    named twice (CUDA C++ Programming Guide, "CUDA Environment Variables").
    """
    value = machine.allocation.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return None
    visible: list[int] = []
    for token in value.split(","):
        index = _index_of(token.strip(), uuids)
        if index is None:
            break
        if index in visible:
            return []
        visible.append(index)
    return visible


def _index_of(token: str, uuids: Sequence[str | None]) -> int | None:
    if token.isdecimal():
        return int(token) if int(token) < len(uuids) else None
    matching = [index for index, uuid in enumerate(uuids) if token and uuid and uuid.startswith(token)]
    return matching[0] if len(matching) == 1 else None


def _tokens(value: str) -> list[str]:
    return [token for token in value.split(",") if token.strip() not in ("", "NoDevFiles")]


def read_allocation(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that allocate GPUs or limit their memory, secrets masked (Slurm: sbatch(1), srun(1))."""
    return {
        name: mask_text(value)
        for name, value in sorted(environment.items())
        if name in _NAMES or name.startswith(_LIMITS) or (name.startswith("SLURM_") and "GPU" in name)
    }
