"""DistributedDataParallel: the whole model on every rank, gradients averaged during the backward pass."""

import inspect
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gpudiag.model.reading import Missing, MissingReason, Reading
from gpudiag.training.strategies.base import BUCKETS, Setup, Strategy

_FLAGS = inspect.signature(DistributedDataParallel.__init__).parameters
# Its name since torch 2.13, where the older one is deprecated.
_BUFFERS_FLAG = "forward_sync_buffers" if "forward_sync_buffers" in _FLAGS else "broadcast_buffers"


class DdpStrategy(Strategy):
    """torch's DistributedDataParallel; it broadcasts the start of rank 0 by itself."""

    def _wrap(self, setup: Setup) -> nn.Module:
        device = setup.group.device
        buffers: dict[str, Any] = {_BUFFERS_FLAG: setup.broadcasts}
        with setup.keeping_start(), setup.group.announced("wrap"):
            return DistributedDataParallel(
                setup.model,
                bucket_cap_mb=bucket_mebibytes(setup.model),
                device_ids=[device.index] if device.type == "cuda" else None,
                **buffers,
            )

    def buckets(self) -> Reading[int]:
        """The number of buckets that DDP built after its first step."""
        return count_buckets(self.model)


def bucket_mebibytes(model: nn.Module) -> Any:
    """A bucket size in MiB, maybe a fraction, for which DDP makes several buckets, as for large models."""
    size = sum(value.numel() * value.element_size() for value in model.parameters())
    return size / BUCKETS / 2**20


def count_buckets(model: nn.Module) -> Reading[int]:
    """The number of gradient buckets of a wrapped model, once DDP has rebuilt them."""
    if not isinstance(model, DistributedDataParallel):
        return Missing(MissingReason.NOT_SUPPORTED, "it is not wrapped in DDP")
    logged: Any = model._get_ddp_logging_data()  # type: ignore[no-untyped-call]
    sizes = str(logged.get("rebuilt_bucket_sizes", ""))
    counted = len([size for size in sizes.split(",") if size.strip()])
    return counted or Missing(MissingReason.NOT_SUPPORTED, "DDP does not report its buckets")
