"""Which GPUs this process was given: what the allocation variables grant, and which devices that is.

A container or a job that was given 2 of 8 GPUs is healthy with 2.
"""

from gpudiag.model.device import Device, Snapshot
from gpudiag.model.reading import Missing

# Values that grant nothing: CUDA stops at the first invalid ordinal, Slurm writes NoDevFiles.
_NO_DEVICES = ("", "-1", "NoDevFiles", "none")
# Values of NVIDIA_VISIBLE_DEVICES that name no number. CUDA base images set `all` whether or not a
# GPU was given; a device plugin that mounts the devices itself writes `void`.
_NO_NUMBER = ("", "all", "void")

# Exact counts for this node first; Slurm documents them in sbatch(1) and srun(1), "OUTPUT ENVIRONMENT VARIABLES".
_COUNT_VARIABLES = ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE")
_LIST_VARIABLES = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
_GRANTING_VARIABLES = (*_COUNT_VARIABLES, *_LIST_VARIABLES, "NVIDIA_VISIBLE_DEVICES")


def granted_count(variable: str, value: str) -> int | None:
    """How many GPUs of this node `variable` grants; None where it grants no particular number."""
    value = value.strip()
    if variable in _COUNT_VARIABLES:
        count = value.rpartition(":")[2]  # "4", or "h100:4"
        return int(count) if count.isdecimal() else None
    if variable in _LIST_VARIABLES:
        return 0 if value in _NO_DEVICES else len(_tokens(value))
    if variable == "NVIDIA_VISIBLE_DEVICES":
        if value in _NO_NUMBER or value.startswith("/"):  # a path: the device list is mounted as files
            return None
        return 0 if value == "none" else len(_tokens(value))
    return None


def granted(allocation: dict[str, str]) -> tuple[str, int] | None:
    """The variable that grants GPUs of this node, and how many it grants; None where none does."""
    for variable in _GRANTING_VARIABLES:
        count = granted_count(variable, allocation[variable]) if variable in allocation else None
        if count is not None:
            return variable, count
    return None


def is_granted(snapshot: Snapshot, device: Device) -> bool:
    """Whether CUDA_VISIBLE_DEVICES, where it is set, leaves `device` to this process.

    Ordinals are read in NVML's order, which is CUDA's where all GPUs are alike or
    CUDA_DEVICE_ORDER is PCI_BUS_ID. A MIG instance's UUID grants the GPU that holds it.
    """
    value = snapshot.machine.allocation.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return True
    if value.strip() in _NO_DEVICES:
        return False
    return any(_names(token, device) for token in _tokens(value))


def names_instance(allocation: dict[str, str], mig_uuid: str) -> bool:
    """Whether CUDA_VISIBLE_DEVICES, where it is set, leaves that MIG instance to this process."""
    value = allocation.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return True
    return any(not token.startswith("MIG-") or mig_uuid.startswith(token) for token in _tokens(value))


def _names(token: str, device: Device) -> bool:
    if token.isdecimal():
        return device.id.nvml_index == int(token)
    if token.startswith("MIG-"):
        instances = device.mig_instances
        return not isinstance(instances, Missing) and any(
            not isinstance(instance.uuid, Missing) and instance.uuid.startswith(token)
            for instance in instances
        )
    # CUDA takes any beginning of a UUID that is unique on the machine.
    return not isinstance(device.id.uuid, Missing) and device.id.uuid.startswith(token)


def _tokens(value: str) -> list[str]:
    """The identifiers before the first one that CUDA calls invalid; it ignores the rest of the list."""
    tokens: list[str] = []
    for token in (part.strip() for part in value.split(",")):
        if token in ("", "-1"):
            break
        tokens.append(token)
    return tokens
