"""Which GPU a rank works on, as torch names it; imported inside ranks only."""

import torch

from gpudiag.model.reading import Missing, MissingReason, Reading


def read_device_uuid(device: torch.device) -> Reading[str]:
    """The UUID of the rank's GPU in NVML's spelling, `GPU-...`; missing on the CPU and on old torch."""
    if device.type != "cuda":
        return Missing(MissingReason.NOT_SUPPORTED, "the rank works on the CPU")
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    if uuid is None:
        return Missing(MissingReason.FUNCTION_NOT_FOUND, "this torch does not tell a GPU's UUID")
    return f"GPU-{uuid}"
