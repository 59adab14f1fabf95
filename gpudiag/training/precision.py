"""The dtype of a training: what runs in it, and how exactly it can agree with a single-process run."""

from contextlib import AbstractContextManager

import torch

# Unit roundoff: half the distance from 1 to the next number.
_ROUNDOFF = {"float32": 2.0**-24, "bfloat16": 2.0**-9, "float16": 2.0**-12}

# The L2 error of a gradient that is right, over its norm, in units of the roundoff. Splitting a batch
# changes the order of a sum, and rounds one partial result per rank: a few roundoffs. Measured over
# all workloads, strategies and both optimizers (see docs/training.md); the margin is at least tenfold, and the smallest
# injected fault is a hundred times larger.
_GRADIENT_ROUNDOFFS = {"float32": 256.0, "bfloat16": 32.0, "float16": 64.0}

# GPUs choose other kernels for other batch sizes, which sum in another order: allow four times as much.
_GPU_FACTOR = 4.0

# Adam divides by the root of the squared gradient: where that is near zero, rounding moves a parameter
# by as much as the learning rate allows.
_ADAM_FACTORS = {"float32": 16.0, "bfloat16": 4.0, "float16": 4.0}

# Loss scaling starts low enough that no step of these workloads overflows.
_INITIAL_SCALE = 1024.0


def gradient_tolerance(dtype: str, device_type: str) -> float:
    """The largest L2 error of a gradient, over its norm, that rounding explains."""
    tolerance = _ROUNDOFF[dtype] * _GRADIENT_ROUNDOFFS[dtype]
    return tolerance if device_type == "cpu" else tolerance * _GPU_FACTOR


def parameter_tolerance(dtype: str, device_type: str, optimizer: str) -> float:
    """The largest L2 error of the parameters, over their norm, that rounding explains.

    Not more than that of the gradient: a step moves the parameters by a fraction of themselves.
    """
    tolerance = gradient_tolerance(dtype, device_type)
    return tolerance if optimizer == "sgd" else tolerance * _ADAM_FACTORS[dtype]


class Precision:
    """The autocast region and the loss scaler of one dtype on one device."""

    def __init__(self, dtype: str, device: torch.device) -> None:
        """Make the scaler, which does something for float16 only."""
        self._dtype = getattr(torch, dtype)
        self._device = device
        self.scaler = torch.amp.GradScaler(device.type, init_scale=_INITIAL_SCALE, enabled=dtype == "float16")

    def autocast(self) -> AbstractContextManager[object]:
        """Run the forward pass in the dtype; parameters and gradients stay float32."""
        return torch.autocast(self._device.type, self._dtype, enabled=self._dtype is not torch.float32)


def make_deterministic(device: torch.device) -> None:
    """Ask for kernels that give the same bits every time, and for float32 without TF32."""
    torch.set_num_threads(1)
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.deterministic = True
