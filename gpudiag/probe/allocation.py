"""The environment variables that hand out GPUs, to this process or to its container."""

from __future__ import annotations

from gpudiag.model.masking import mask_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

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
)  # fmt: skip


def read_allocation(environment: Mapping[str, str]) -> dict[str, str]:
    """Each variable that hands out GPUs, as it is set, secrets masked; Slurm's are those with GPU in their name.

    Slurm: sbatch(1) and srun(1), "OUTPUT ENVIRONMENT VARIABLES".
    """
    return {
        name: mask_text(value)
        for name, value in sorted(environment.items())
        if name in _NAMES or (name.startswith("SLURM_") and "GPU" in name)
    }
