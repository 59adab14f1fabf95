r"""How far do right gradients in half precision differ from those of one process, by rounding alone?

Splits every batch of a training over 1, 2, 3, 4, 5 and 8 ranks in one process, with no strategy in between:
the mean of the ranks' gradients against the gradient of the whole batch, at the same parameters, step by
step. Prints Markdown: the largest error over all steps, numbers of ranks, batch sizes and seeds, for each
workload, dtype and optimizer, and that of the loss. The limits in gpudiag/training/precision.py are five
times the figures that this prints.

    python -m benchmarks.train_rounding [--steps 12] [--seeds 5] \
        [--batch-size 1 --batch-size 8 --batch-size 64] [--page docs/training.md]
"""

import argparse
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from benchmarks.matrix import show, versions
from gpudiag.model.training import MAX_STEPS
from gpudiag.training.precision import make_deterministic
from gpudiag.training.reference import Reference
from gpudiag.training.tensors import Tensors, difference, norm
from gpudiag.training.trainer import SMALL_GRADIENT
from gpudiag.training.training_job import TrainingJob
from gpudiag.training.workloads import Epochs, Samples, make_data

RANKS = (1, 2, 3, 4, 5, 8)
WORKLOADS = ("regression", "classification", "transformer", "convolution")
DTYPES = ("bfloat16", "float16")
OPTIMIZERS = ("sgd", "adam")
BATCH_SIZES = (1, 8, 64)
BEGIN, END = "<!-- the rounding begins -->", "<!-- the rounding ends -->"


@dataclass(frozen=True, slots=True)
class Errors:
    """The largest of some trainings: of a step's gradient over its norm, and of its loss."""

    gradient: float
    loss: float


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--batch-size", type=int, action="append")
    parser.add_argument("--page", type=Path, help="a page to write the table into")
    options = parser.parse_args()
    make_deterministic(torch.device("cpu"))
    sizes = options.batch_size or BATCH_SIZES
    show("\n".join(_describe(options.steps, options.seeds, sizes)), options.page, BEGIN, END)


def _describe(steps: int, seeds: int, sizes: Sequence[int]) -> Iterator[str]:
    yield f"{versions()}; {steps} steps, {seeds} seeds,"
    yield f"{', '.join(map(str, sizes))} samples per rank, {', '.join(map(str, RANKS))} ranks:"
    yield ""
    heads = [f"{dtype}, {optimizer}" for dtype in DTYPES for optimizer in OPTIMIZERS]
    yield f"| largest error of | {' | '.join(heads)} |"
    yield f"| --- |{' --- |' * len(heads)}"
    rows = {
        name: [
            _measure(name, dtype, optimizer, steps, seeds, sizes)
            for dtype in DTYPES
            for optimizer in OPTIMIZERS
        ]
        for name in WORKLOADS
    }
    for name, errors in rows.items():
        yield f"| gradient, {name} | {' | '.join(f'{error.gradient:.1e}' for error in errors)} |"
    for name, errors in rows.items():
        yield f"| loss, {name} | {' | '.join(f'{error.loss:.1e}' for error in errors)} |"


def _measure(
    workload: str, dtype: str, optimizer: str, steps: int, seeds: int, sizes: Sequence[int]
) -> Errors:
    """The largest errors over all seeds, batch sizes and numbers of ranks."""
    found = [
        error
        for seed, size, workers in itertools.product(range(1, seeds + 1), sizes, RANKS)
        for error in _train(
            TrainingJob("ddp", workload, "gloo", dtype, optimizer, steps, size, seed, workers)
        )
    ]
    return Errors(
        max(error.gradient for error in found),
        max(error.loss for error in found),
    )


def _train(job: TrainingJob) -> Iterator[Errors]:
    """The errors of each step of one training, of which every rank's part is computed here."""
    samples = Samples(*make_data(job.workload, job.sample_count, job.seed))
    # It looks several times in each step: its scaler must not count these as steps after which to grow.
    reference = Reference(replace(job, steps=MAX_STEPS), torch.device("cpu"), samples)
    epochs, floor = Epochs(job, samples, 0), 0.0
    for step in range(job.steps):
        epoch, place = divmod(step, job.steps_per_epoch)
        parts = [rank[place] for rank in epochs.intended(epoch)]
        own = [reference.look(part) for part in parts]
        whole = reference.look(torch.cat(parts))
        floor = floor or SMALL_GRADIENT * norm(whole.gradients)
        mean = _mean([one.gradients for one in own])
        loss = sum(one.loss for one in own) / len(own)
        error = difference(mean, whole.gradients, floor)
        if error is None:
            raise ArithmeticError(f"{job} is not finite in step {step}")
        yield Errors(error, abs(loss - whole.loss) / max(1.0, abs(whole.loss)))
        reference.step_with(mean)


def _mean(gradients: Sequence[Tensors]) -> Tensors:
    return {
        name: sum((one[name] for one in gradients), torch.zeros(())) / len(gradients) for name in gradients[0]
    }


if __name__ == "__main__":
    main()
