"""One rank's process group, in which every wait is announced to the side channel first."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # public in torch's documentation
from torch.distributed.rendezvous import rendezvous

from gpudiag.ranks.rank.context import RankContext
from gpudiag.ranks.rank.device import binds_device, claim_device, refuse_shared_device
from gpudiag.ranks.stages import INIT, RENDEZVOUS


class TrainingGroup:
    """The process group of a training, as one rank has it; `renew` replaces it with a new one."""

    def __init__(self, context: RankContext, backend: str, run: int) -> None:
        """Rendezvous and open the process group; `run` distinguishes the runs of one command."""
        self.rank = context.rank
        self.world_size = context.world_size
        self.local_rank = context.local_rank
        self.local_world_size = context.local_world_size
        self.progress = context.progress
        self._backend = backend
        self._timeout = timedelta(seconds=context.operation_timeout_seconds)
        self._sequence = 0
        self._groups = 0
        self._closed: list[Any] = []  # gloo's earlier groups: freed, one may never end (ranks/rank/worker.py)
        self.progress.enter_stage(RENDEZVOUS)
        self.device = claim_device(context, backend)
        timeout = timedelta(seconds=context.rendezvous_timeout_seconds)
        store, _, _ = next(
            iter(rendezvous(context.init_method, context.rank, context.world_size, timeout=timeout))
        )
        self._store = PrefixStore(f"gpudiag/{run}", store)
        self.progress.enter_stage(INIT)
        refuse_shared_device(context, self._store, self.device)
        self._open()

    @property
    def on_one_host(self) -> bool:
        """Whether all ranks are on one host, and so see the same files."""
        return self.local_world_size == self.world_size

    def renew(self) -> None:
        """Close the process group and open another one of the same ranks."""
        if dist.is_initialized():  # DeepSpeed closes it with its own
            if self._backend == "gloo":
                self._closed.append(dist.group.WORLD)
            dist.destroy_process_group()
        self._open()

    def _open(self) -> None:
        self._groups += 1
        dist.init_process_group(
            self._backend,
            store=PrefixStore(f"group{self._groups}", self._store),
            rank=self.rank,
            world_size=self.world_size,
            timeout=self._timeout,
            device_id=self.device if binds_device(self.device) else None,
        )
        self.barrier()

    @contextmanager
    def announced(self, op: str, elements: int = 1, predicted_seconds: float | None = None) -> Iterator[None]:
        """Announce a wait for other ranks, and its end once the GPU is done too, to the side channel."""
        sequence = self._sequence
        self._sequence += 1
        self.progress.before_operation(sequence, op, "float32", elements, predicted_seconds)
        yield
        self.synchronize()
        self.progress.after_operation(sequence)

    def barrier(self) -> None:
        """Return once every rank is here."""
        self.minimum(0)

    def minimum(self, value: int) -> int:
        """The smallest of all ranks' values."""
        token = torch.tensor([value], dtype=torch.int64, device=self.device)
        with self.announced("agree"):
            dist.all_reduce(token, dist.ReduceOp.MIN)
            return int(token.item())

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Give every rank the tensor of rank 0, in place."""
        with self.announced("broadcast", tensor.numel()):
            dist.broadcast(tensor, 0)

    def synchronize(self) -> None:
        """Return once the GPU has done all that was queued; on CPU there is no queue."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
