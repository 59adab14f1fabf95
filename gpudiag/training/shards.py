"""Which samples each rank reads in each epoch: torch's own sampler and loader, and the faults in them."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from gpudiag.training.faults import NAN, NOSET_EPOCH, SAMEDATA, UNEVEN
from gpudiag.training.job import TrainingJob

Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # indices, inputs, targets


class Samples(Dataset[tuple[int, torch.Tensor, torch.Tensor]]):
    """The data set: each sample with its index."""

    def __init__(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        """Keep the tensors, one row per sample."""
        self.inputs = inputs
        self.targets = targets

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        return index, self.inputs[index], self.targets[index]


@dataclass(frozen=True, slots=True)
class Epochs:
    """The batches of one rank, epoch by epoch, with the job's faults in them.

    `whole`: this one process reads the batches of all workers, concatenated.
    """

    job: TrainingJob
    samples: Samples
    rank: int
    whole: bool = False

    @property
    def batch_size(self) -> int:
        """How many samples this process reads for a step."""
        return self.job.batch_size * (self.job.workers if self.whole else 1)

    def batches(self, epoch: int) -> Iterator[Batch]:
        """The rank's batches of that epoch."""
        if not self.whole:
            yield from self._batches(epoch)
            return
        workers = [replace(self, rank=rank, whole=False) for rank in range(self.job.workers)]
        for parts in zip(*(worker.batches(epoch) for worker in workers), strict=True):
            indices, inputs, targets = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
            yield indices, inputs, targets

    def _batches(self, epoch: int) -> Iterator[Batch]:
        kinds = {fault.kind for fault in self.job.faults}
        sampler = self._sampler(0 if SAMEDATA in kinds else self.rank)
        if NOSET_EPOCH not in kinds:
            sampler.set_epoch(epoch)
        batches: Iterator[Batch] = iter(DataLoader(self.samples, self.job.batch_size, sampler=sampler))
        left = self.job.steps_per_epoch
        if UNEVEN in kinds and self.rank == self.job.workers - 1:
            left -= 1
        for step, (indices, inputs, targets) in enumerate(batches):
            if step >= left:
                return
            yield indices, self._spoilt(inputs, epoch * self.job.steps_per_epoch + step), targets

    def intended(self, epoch: int) -> list[list[torch.Tensor]]:
        """The indices that every rank should read, by rank and step; the single process trains on them."""
        orders = []
        for rank in range(self.job.workers):
            sampler = self._sampler(rank)
            sampler.set_epoch(epoch)
            orders.append(list(torch.tensor(list(sampler)).chunk(self.job.steps_per_epoch)))
        return orders

    def _sampler(self, rank: int) -> "DistributedSampler[tuple[int, torch.Tensor, torch.Tensor]]":
        return DistributedSampler(
            self.samples, num_replicas=self.job.workers, rank=rank, shuffle=True, seed=self.job.seed
        )

    def _spoilt(self, inputs: torch.Tensor, step: int) -> torch.Tensor:
        """The inputs, with a NaN in the first of them where the job asks for it."""
        due = any(
            fault.kind == NAN and (fault.rank, fault.step) == (self.rank, step) for fault in self.job.faults
        )
        if due and inputs.is_floating_point():
            inputs = inputs.clone()
            inputs.view(-1)[0] = float("nan")
        return inputs
