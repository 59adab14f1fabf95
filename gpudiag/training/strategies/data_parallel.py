"""DataParallel: one process, the model copied to every GPU for each step."""

import torch
from torch import nn

from gpudiag.training.strategies.base import Setup, Strategy


class DataParallelStrategy(Strategy):
    """torch's DataParallel. On fewer than two GPUs it silently just calls the model."""

    def _wrap(self, setup: Setup) -> nn.Module:
        self._seen: set[str] = set()
        setup.model.register_forward_pre_hook(self._note_device)
        devices = list(range(min(setup.job.workers, torch.cuda.device_count())))
        self._parallel = nn.DataParallel(setup.model, device_ids=devices)
        return self._parallel

    def _note_device(self, module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        self._seen.add(str(inputs[0].device))

    def show(self, inputs: torch.Tensor) -> None:
        """Call the model once: only then does it show on which devices it computes."""
        with torch.no_grad():
            self.forward(inputs)

    def own_error(self, own: dict[str, torch.Tensor]) -> None:
        """None: the one process has the samples of all workers."""

    @property
    def world_size(self) -> int:
        """The number of GPUs that the wrapper splits a batch over."""
        return len(self._parallel.device_ids)

    @property
    def workers(self) -> int:
        """The number of devices on which the model was called."""
        return len(self._seen)
