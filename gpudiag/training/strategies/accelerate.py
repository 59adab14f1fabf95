"""Accelerate: Hugging Face's wrapper around model and optimizer; on several ranks it is DDP inside."""

import os
from typing import Any

import torch
from torch import nn

from gpudiag.model.reading import Reading
from gpudiag.training.group import TrainingGroup
from gpudiag.training.strategies.base import Setup, Strategy
from gpudiag.training.strategies.ddp import bucket_mebibytes, count_buckets

_PRECISIONS = {"float32": "no", "bfloat16": "bf16", "float16": "fp16"}


class AccelerateStrategy(Strategy):
    """`Accelerator.prepare` around model and optimizer, and its own backward pass."""

    framework = "accelerate"

    def __init__(self, setup: Setup) -> None:
        """Let Accelerate find the ranks, and wrap the model and the optimizer."""
        super().__init__(setup)
        self.optimizer = self._accelerator.prepare_optimizer(self.optimizer)
        if self._accelerator.scaler is not None:
            self.precision.scaler = self._accelerator.scaler

    def _wrap(self, setup: Setup) -> nn.Module:
        from accelerate import Accelerator
        from accelerate.state import AcceleratorState
        from accelerate.utils import DistributedDataParallelKwargs, GradScalerKwargs

        _check_ranks(setup.group)
        AcceleratorState._reset_state(reset_partial_state=True)  # it still holds an earlier process group's
        self._accelerator: Any = Accelerator(
            cpu=setup.group.device.type == "cpu",
            mixed_precision=_PRECISIONS[setup.job.dtype],
            kwargs_handlers=[
                DistributedDataParallelKwargs(
                    broadcast_buffers=setup.broadcasts, bucket_cap_mb=bucket_mebibytes(setup.model)
                ),
                GradScalerKwargs(
                    init_scale=self.precision.scaler.get_scale(),
                    growth_interval=self.precision.growth_interval,
                ),
            ],
        )
        with setup.keeping_start(), setup.group.announced("wrap"):
            model: nn.Module = self._accelerator.prepare_model(setup.model)
        return model

    @property
    def world_size(self) -> int:
        """The number of processes that Accelerate reports: 1 if it did not detect the others."""
        return int(self._accelerator.num_processes)

    @property
    def version(self) -> str:
        """Accelerate's version, with torch's."""
        from accelerate import __version__

        return f"accelerate {__version__}, torch {torch.__version__}"

    def buckets(self) -> Reading[int]:
        """The number of buckets of the DDP inside."""
        return count_buckets(self.model)

    def zero_gradients(self) -> None:
        """Clear the gradients of the last step."""
        self.optimizer.zero_grad()

    def backward(self, loss: torch.Tensor) -> None:
        """Run the backward pass; it leaves the gradients averaged over all ranks, and unscaled."""
        self._accelerator.backward(loss)
        self._accelerator.unscale_gradients(self.optimizer)

    def step(self) -> bool:
        """Step the optimizer; False if the loss scaler skipped the step."""
        self.optimizer.step()
        return not self.optimizer.step_was_skipped


def _check_ranks(group: TrainingGroup) -> None:
    """Set a launcher's environment variables: on CPUs Accelerate reads these, never the process group."""
    os.environ |= {
        "RANK": str(group.rank),
        "WORLD_SIZE": str(group.world_size),
        "LOCAL_RANK": str(group.local_rank if group.device.index is None else group.device.index),
        "LOCAL_WORLD_SIZE": str(group.local_world_size),
    }
