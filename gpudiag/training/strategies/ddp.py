"""DistributedDataParallel: the whole model on every rank, gradients averaged during the backward pass."""

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gpudiag.training.strategies.base import Setup, Strategy


class DdpStrategy(Strategy):
    """torch's DistributedDataParallel; it broadcasts the start of rank 0 by itself."""

    def _wrap(self, setup: Setup) -> nn.Module:
        device = setup.group.device
        with setup.group.announced("wrap"):
            return DistributedDataParallel(
                setup.model,
                device_ids=[device.index] if device.type == "cuda" else None,
                init_sync=setup.broadcasts,
                broadcast_buffers=setup.broadcasts,
            )
