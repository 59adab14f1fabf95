"""What is trained: small models and synthetic data, alike on every machine; and which samples a rank reads.

No dropout, no batch statistics: a split batch gives the whole one's gradient. Every model has buffers.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from gpudiag.training.faults import NAN, NOSET_EPOCH, SAMEDATA, UNEVEN
from gpudiag.training.training_job import TrainingJob

# --- models and data

_TOKENS, _LENGTH, _WIDTH = 32, 16, 32
_IMAGE, _CLASSES = 12, 4


@dataclass(frozen=True, slots=True)
class Workload:
    """A model, its loss, and its data: inputs and targets, one row per sample."""

    build: Callable[[], nn.Module]
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    make_data: Callable[[int, torch.Generator], tuple[torch.Tensor, torch.Tensor]]


class Standardise(nn.Module):
    """Shift and scale by fixed numbers, which are buffers and come from the seed."""

    shift: torch.Tensor
    scale: torch.Tensor

    def __init__(self, width: int) -> None:
        """Draw the numbers."""
        super().__init__()
        self.register_buffer("shift", 0.1 * torch.randn(width))
        self.register_buffer("scale", 1.0 + 0.1 * torch.rand(width))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The inputs, standardised along the last axis."""
        return (inputs - self.shift) * self.scale


class Block(nn.Module):
    """Attention and a small perceptron, each with a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        """Build the layers."""
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(width)
        self.project_in = nn.Linear(width, 3 * width, bias=False)  # a bias of the keys has no gradient
        self.project_out = nn.Linear(width, width)
        self.perceptron = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The block's output, of the shape (batch, length, width) of its input."""
        batch, length, width = inputs.shape
        parts = self.project_in(self.before_attention(inputs)).view(batch, length, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        inputs = inputs + self.project_out(attended.transpose(1, 2).reshape(batch, length, width))
        output: torch.Tensor = inputs + self.perceptron(inputs)
        return output


def _build_regression() -> nn.Module:
    return nn.Sequential(Standardise(5), nn.Linear(5, 10), nn.ReLU(), nn.Linear(10, 5))


def _build_classification() -> nn.Module:
    return nn.Sequential(
        Standardise(20), nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, _CLASSES)
    )


def _build_transformer() -> nn.Module:
    return nn.Sequential(
        nn.Embedding(_TOKENS, _WIDTH),
        Standardise(_WIDTH),
        Block(_WIDTH, 2),
        Block(_WIDTH, 2),
        nn.LayerNorm(_WIDTH),
        nn.Linear(_WIDTH, _TOKENS),
    )


def _build_convolution() -> nn.Module:
    return nn.Sequential(
        Standardise(_IMAGE),
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * (_IMAGE // 2) ** 2, _CLASSES),
    )


def _make_regression(count: int, random: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.randn(count, 5, generator=random)
    return inputs, inputs @ torch.randn(5, 5, generator=random)


def _make_classification(count: int, random: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.randn(count, 20, generator=random)
    return inputs, (inputs @ torch.randn(20, _CLASSES, generator=random)).argmax(1)


def _make_tokens(count: int, random: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Counting sequences from a random start: the next token follows from the last."""
    start = torch.randint(_TOKENS, (count, 1), generator=random)
    tokens = (start + 3 * torch.arange(_LENGTH + 1)) % _TOKENS
    return tokens[:, :-1], tokens[:, 1:]


def _make_images(count: int, random: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Noise with one brighter quarter, whose number is the class."""
    images = 0.5 * torch.randn(count, 1, _IMAGE, _IMAGE, generator=random)
    classes = torch.randint(_CLASSES, (count,), generator=random)
    half = _IMAGE // 2
    for sample, quarter in enumerate(classes.tolist()):
        row, column = half * (quarter // 2), half * (quarter % 2)
        images[sample, 0, row : row + half, column : column + half] += 1.0
    return images, classes


def _cross_entropy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())


MODELS: Mapping[str, Workload] = MappingProxyType(
    {
        "regression": Workload(_build_regression, nn.functional.mse_loss, _make_regression),
        "classification": Workload(_build_classification, _cross_entropy, _make_classification),
        "transformer": Workload(_build_transformer, _cross_entropy, _make_tokens),
        "convolution": Workload(_build_convolution, _cross_entropy, _make_images),
    }
)


def build_model(name: str, seed: int) -> nn.Module:
    """The workload's model on the CPU, initialised from the seed; the global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return MODELS[name].build()


def make_data(name: str, count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of that many samples, on the CPU."""
    random = torch.Generator().manual_seed(seed)
    return MODELS[name].make_data(count, random)


# --- who reads which samples

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
