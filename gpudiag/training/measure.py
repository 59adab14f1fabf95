"""How fast a strategy is: timed steps, the same work without it, and one rank alone."""

import resource
import statistics
import time
from dataclasses import dataclass, field

import torch

from gpudiag.model.codec import encode
from gpudiag.model.reading import Missing, MissingReason, Reading
from gpudiag.model.training import RankSpeed
from gpudiag.training.precision import Precision
from gpudiag.training.reference import make_optimizer
from gpudiag.training.shards import Batch, Epochs
from gpudiag.training.strategies.base import Strategy
from gpudiag.training.workloads import MODELS, build_model

_WARMUP_STEPS = 3
_BYTES_PER_KIB = 1024


@dataclass(slots=True)
class _Times:
    """Seconds of each part, step by step."""

    data: list[float] = field(default_factory=list)
    forward: list[float] = field(default_factory=list)
    backward: list[float] = field(default_factory=list)
    optimizer: list[float] = field(default_factory=list)
    step: list[float] = field(default_factory=list)
    own: list[float] = field(default_factory=list)


class SpeedTest:
    """The timed steps of one rank, after the verified ones."""

    def __init__(self, strategy: Strategy, epochs: Epochs, held_bytes: int) -> None:
        """Prepare a plain copy of the model; `held_bytes` of the device's memory are not the strategy's."""
        self._held_bytes = held_bytes
        self._strategy = strategy
        self._epochs = epochs
        self._job = strategy.job
        self._group = strategy.group
        self._loss = MODELS[self._job.workload].loss
        self._plain = build_model(self._job.workload, self._job.seed).to(self._group.device)
        self._plain_optimizer = make_optimizer(self._job, self._plain)
        self._precision = Precision(self._job, self._group.device)
        self._epoch = -(-self._job.steps // self._job.steps_per_epoch)
        self._batches = epochs.batches(self._epoch)
        self._iteration = self._job.steps

    def warm_up(self) -> None:
        """Take a few untimed steps."""
        for _ in range(min(_WARMUP_STEPS, self._job.steps)):
            self._time_step(_Times(), timed=False)

    def measure(self) -> None:
        """Time the steps, and emit the times."""
        plain = self._time_plain(self._job.steps)
        self._group.barrier()
        alone = self._time_alone()
        del self._plain, self._plain_optimizer  # or the strategy's peak memory would include them
        if self._group.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._group.device)
        times = _Times()
        for _ in range(self._job.steps):
            self._time_step(times, timed=True)
        self._group.barrier()
        self._group.progress.emit({"kind": "speed", **encode(self._speed(times, plain, alone))})

    def _speed(self, times: _Times, plain: float, alone: float | None) -> RankSpeed:
        return RankSpeed(
            rank=self._group.rank,
            steps=len(times.step),
            samples=self._epochs.batch_size,
            step_seconds=tuple(times.step),
            data_seconds=statistics.fmean(times.data),
            forward_seconds=statistics.fmean(times.forward),
            backward_seconds=statistics.fmean(times.backward),
            optimizer_seconds=statistics.fmean(times.optimizer),
            own_seconds_p50=statistics.median(times.own),
            plain_seconds=plain,
            alone_samples_per_second=None if alone is None else self._job.batch_size / alone,
            host_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _BYTES_PER_KIB,
            device_memory_bytes=self._device_memory(),
        )

    def _time_step(self, times: _Times, *, timed: bool) -> None:
        """Take one step and add its times; each part is timed until the GPU has finished it."""
        started = time.perf_counter()
        if timed:
            self._group.progress.before_iteration(self._iteration)
            self._iteration += 1
        late = time.perf_counter()
        _, inputs, targets = self._next_batch()
        inputs, targets = inputs.to(self._group.device), targets.to(self._group.device)
        fetched = self._now()
        strategy = self._strategy
        strategy.zero_gradients()
        with self._group.announced("training_step"):
            loss = self._loss(strategy.forward(inputs), targets)
            forward = self._now()
            strategy.backward(loss)
            backward = self._now()
            strategy.step()
            ended = self._now()
        times.data.append(fetched - late)
        times.forward.append(forward - fetched)
        times.backward.append(backward - forward)
        times.optimizer.append(ended - backward)
        times.step.append(ended - started)
        times.own.append(fetched - started)

    def _time_plain(self, steps: int) -> float:
        """Mean seconds of a step of the plain model on this rank's samples."""
        batches = [self._next_batch() for _ in range(steps)]
        self._plain_step(batches[0])
        before = self._now()
        for batch in batches:
            self._plain_step(batch)
        return (self._now() - before) / steps

    def _time_alone(self) -> float | None:
        """Mean seconds of a plain step with its data, on rank 0 while the others wait; None on those."""
        seconds = None
        if self._group.rank == 0:
            before = self._now()
            for _ in range(self._job.steps):
                self._plain_step(self._next_batch())
            seconds = (self._now() - before) / self._job.steps
        self._group.barrier()
        return seconds

    def _plain_step(self, batch: Batch) -> None:
        # A worker's share: all of it, where each worker has a process of its own.
        inputs, targets = (tensor[: self._job.batch_size] for tensor in batch[1:])
        self._plain_optimizer.zero_grad(set_to_none=True)
        with self._precision.autocast():
            outputs = self._plain(inputs.to(self._group.device))
        loss = self._loss(outputs.float(), targets.to(self._group.device))
        self._precision.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        self._precision.scaler.step(self._plain_optimizer)
        self._precision.scaler.update()

    def _next_batch(self) -> Batch:
        """This rank's next samples, from as many epochs as it takes."""
        batch = next(self._batches, None)
        while batch is None:
            self._epoch += 1
            self._batches = self._epochs.batches(self._epoch)
            batch = next(self._batches, None)
        return batch

    def _now(self) -> float:
        self._group.synchronize()
        return time.perf_counter()

    def _device_memory(self) -> Reading[int]:
        if self._group.device.type != "cuda":
            return Missing(MissingReason.NOT_SUPPORTED, "the rank works on the CPU")
        return int(torch.cuda.max_memory_allocated(self._group.device)) - self._held_bytes
