"""What a measured speed is held against beside `measured_limits`: the processors' own rate, and the data sheet.

Both come last: a data sheet may be of another cooling or clock, so its limit is lower than what peers and
the own history say of a healthy GPU, and it is there to be shown beside them.
"""

from gpudiag.checks.measured_limits import Limit
from gpudiag.model.device import Device
from gpudiag.model.reading import Missing
from gpudiag.reference.gpu_models import (
    CORES_PER_MULTIPROCESSOR,
    RATE_OF_DTYPE,
    TENSOR_FLOPS_PER_CLOCK,
    GpuModel,
    find_model,
)

HERTZ_PER_MHZ = 1_000_000
# Large bfloat16 products reach 0.73 to 0.87 of the dense peak on A100, H100 and B200, float8 ones 0.71 to
# 0.76 (`published` in reference/gpu_models.toml).
MATRIX_SHARE = 0.65
MEMORY_SHARE = 0.80  # DCGM's floors are 0.33 to 0.80 of the data sheet; healthy GPUs copy at 0.85 to 0.95


def matrix_limit(device: Device, dtype: str) -> Limit | None:
    """The least speed of a large matrix product, in operations per second, by processors and highest clock.

    None where the device or the type does not tell; a GeForce, which accumulates in float32 at half of its
    architecture's rate, is left to the data sheet.
    """
    capability, cores, clock = device.compute_capability, device.cuda_cores, device.sm_clock_max_mhz
    if isinstance(capability, Missing) or isinstance(cores, Missing) or isinstance(clock, Missing):
        return None
    per_clock, rate = TENSOR_FLOPS_PER_CLOCK.get(capability), RATE_OF_DTYPE.get(dtype)
    if per_clock is None or rate is None or "GeForce" in str(device.name):
        return None
    multiprocessors = cores // CORES_PER_MULTIPROCESSOR[capability]
    most = multiprocessors * clock * HERTZ_PER_MHZ * per_clock * rate
    return Limit(
        MATRIX_SHARE * most, f"{MATRIX_SHARE:.0%} of {multiprocessors} multiprocessors at {clock} MHz"
    )


def data_sheet_matrix_limit(device: Device, dtype: str) -> Limit | None:
    """The same by the product's data sheet; None for a product that the table does not have."""
    model = _model(device)
    if model is None or dtype not in model.dense_flops_per_second:
        return None
    return Limit(MATRIX_SHARE * model.dense_flops_per_second[dtype], f"{MATRIX_SHARE:.0%} of {model.source}")


def data_sheet_memory_limit(device: Device) -> Limit | None:
    """The least memory bandwidth in bytes per second by the product's data sheet."""
    model = _model(device)
    if model is None:
        return None
    return Limit(MEMORY_SHARE * model.memory_bytes_per_second, f"{MEMORY_SHARE:.0%} of {model.source}")


def _model(device: Device) -> GpuModel | None:
    return None if isinstance(device.name, Missing) else find_model(device.name)
