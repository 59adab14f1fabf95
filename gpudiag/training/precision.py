"""The dtype of a training: what runs in it, and how exactly it can agree with a single-process run."""

from contextlib import AbstractContextManager
from types import MappingProxyType

import torch

from gpudiag.training.training_job import TrainingJob

# Unit roundoff of float32: half the distance from 1 to the next number.
_ROUNDOFF = 2.0**-24

# The L2 error of a gradient that is right, over its norm, in units of the roundoff. Splitting a batch
# changes the order of a sum, and rounds one partial result per rank: a few roundoffs. Measured over
# all workloads, strategies and both optimizers (see docs/training.md); the smallest injected fault is a
# hundred times larger.
_FLOAT32_ROUNDOFFS = 256.0

# GPUs choose other kernels for other batch sizes, which sum in another order: allow four times as much.
_GPU_FACTOR = 4.0

# Adam divides by the root of the squared gradient: where that is near zero, rounding moves a parameter
# by as much as the learning rate allows. For two separate runs in float32.
_ADAM_FACTOR = 16.0

# In half precision, for one step from the same parameters: the largest error of a gradient over its norm, as
# `python -m benchmarks.train_rounding` measured it (docs/training.md). Five times that is allowed.
_MARGIN = 5.0
_MEASURED = MappingProxyType(
    {
        ("bfloat16", "regression"): {"sgd": 4.9e-3, "adam": 4.8e-3},
        ("bfloat16", "classification"): {"sgd": 5.2e-3, "adam": 6.0e-3},
        ("bfloat16", "transformer"): {"sgd": 3.8e-3, "adam": 3.8e-3},
        ("bfloat16", "convolution"): {"sgd": 5.0e-3, "adam": 4.5e-3},
        ("float16", "regression"): {"sgd": 6.4e-4, "adam": 6.7e-4},
        ("float16", "classification"): {"sgd": 6.0e-4, "adam": 6.7e-4},
        ("float16", "transformer"): {"sgd": 4.7e-4, "adam": 4.9e-4},
        ("float16", "convolution"): {"sgd": 2.9e-3, "adam": 2.9e-3},
    }
)

# An update of the optimizer from the same parameters and the same gradients is float32 in any dtype: each
# operation rounds once, and next to the parameters an update is small. Measured: the same bits.
_UPDATE_ROUNDOFFS = 4.0

# Loss scaling starts low enough that no step of these workloads overflows.
_INITIAL_SCALE = 1024.0


def gradient_tolerance(job: TrainingJob, device_type: str) -> float:
    """The largest L2 error of a gradient, over its norm, that rounding explains."""
    if job.dtype == "float32":
        return _on(device_type, _ROUNDOFF * _FLOAT32_ROUNDOFFS)
    return _on(device_type, _MARGIN * _MEASURED[job.dtype, job.workload][job.optimizer])


def parameter_tolerance(job: TrainingJob, device_type: str) -> float:
    """The largest L2 error of the parameters, over their norm, that rounding explains.

    In float32 for two runs (with SGD the gradient's), in half precision for one update.
    """
    u = _ROUNDOFF
    if job.dtype != "float32":
        return _on(device_type, u * _UPDATE_ROUNDOFFS)
    return _on(device_type, u * _FLOAT32_ROUNDOFFS * (_ADAM_FACTOR if job.optimizer == "adam" else 1.0))


def _on(device_type: str, tolerance: float) -> float:
    return tolerance if device_type == "cpu" else tolerance * _GPU_FACTOR


# Below this share of the parameters' norm, a movement is mostly the rounding of their update.
SMALL_MOVEMENT = 2.0**-10


def order_tolerance(job: TrainingJob, device_type: str) -> float:
    """The largest deviation after three steps, over their movement, that another order of sums explains.

    The terms are the same bits, so this is tighter than the limits against one process. Two orders of
    W terms differ by at most 2 (W - 1) u of the sum of their sizes (N. J. Higham, Accuracy and Stability
    of Numerical Algorithms, 2002, 4.2), and gradients of ranks may be twenty times their mean
    (SMALL_GRADIENT in trainer.py); rounding of the update is 2 u of the parameters in each step, which are
    at most 1 / SMALL_MOVEMENT times the movement.
    """
    u = _ROUNDOFF  # of gradients, their sums and parameters, also under autocast
    order = 2 * (job.workers - 1) * u * 20
    return 3 * (order + 2 * u / SMALL_MOVEMENT)


class Precision:
    """The autocast region and the loss scaler of one dtype on one device."""

    def __init__(self, job: TrainingJob, device: torch.device) -> None:
        """Make the loss scaler, which is active for float16 only.

        It doubles its scale two steps after the verified ones, so a checkpoint that loses the count of good
        steps shows in the scale of the steps after a reload.
        """
        self._dtype = getattr(torch, job.dtype)
        self._device = device
        self.growth_interval = job.steps + 2
        self.scaler = torch.amp.GradScaler(
            device.type,
            init_scale=_INITIAL_SCALE,
            growth_interval=self.growth_interval,
            enabled=job.dtype == "float16",
        )

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
