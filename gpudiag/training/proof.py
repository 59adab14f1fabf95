"""After the verified steps: the model learned, a checkpoint resumes, a repeat is the same; and the speed."""

import resource
import statistics
import time
from dataclasses import dataclass, field, replace

import torch
import torch.distributed as dist

from gpudiag.model.codec import encode
from gpudiag.model.reading import Missing, MissingReason, Reading
from gpudiag.model.training import RankProof, RankSpeed
from gpudiag.training.precision import SMALL_MOVEMENT, Precision, order_tolerance
from gpudiag.training.reference import make_optimizer
from gpudiag.training.strategies import start_strategy
from gpudiag.training.strategies.base import ScriptState, Setup, Strategy
from gpudiag.training.tensors import Digests, Tensors, differing_names, digest_values, finite, norm
from gpudiag.training.trainer import REPEATED_STEPS, VerifiedTraining, digests_of, run_steps
from gpudiag.training.workloads import MODELS, Batch, Epochs, build_model

# --- the checks

# After a reload: the first step differs at most by the order of sums, the later ones build on its result.
_STEPS_AFTER_RELOAD = 3
# Added to the seed of the model that a checkpoint is loaded into: its own initial values must not survive.
_OTHER_START = 7919
_FAULTY = Missing(MissingReason.NOT_ASKED, "a fault is injected")


def prove(training: VerifiedTraining, folder: str) -> Strategy:
    """The strategy to go on with, a new object unless faults are injected; emits the RankProof."""
    job, group = training.job, training.group
    after = training.strategy.parameters()
    moved = any(not after[name].equal(training.start[name]) for name in after)
    proof = RankProof(
        rank=group.rank,
        loss_before=finite(training.reference.evaluate(training.start)),
        loss_after=finite(training.reference.evaluate(after)),
        moved=moved,
        optimizer_state_here=training.strategy.optimizer_state_here(),
        optimizer_state_whole=training.reference.state_elements(),
        checkpoint_identical=_FAULTY,
        repeat_identical=_FAULTY,
        tolerance_order=order_tolerance(job, group.device.type),
        gradients_here=training.gradients_here,
        buckets=training.strategy.buckets(),
    )
    if not job.faults:
        proof = _prove_checkpoint(training, folder, proof)
        proof = replace(proof, repeat_identical=_prove_repeat(training, folder, proof.tolerance_order))
    group.progress.emit({"kind": "proof", **encode(proof)})
    return training.strategy


def _prove_checkpoint(training: VerifiedTraining, folder: str, proof: RankProof) -> RankProof:
    """`proof` with what a new model got back from the checkpoint, bit for bit, and how it trains on.

    The steps after it may differ: a newly wrapped model rebuilds DDP's buckets, and sums in another order.
    """
    obstacle = training.strategy.checkpoint_obstacle
    if obstacle is not None:
        return replace(proof, checkpoint_identical=Missing(MissingReason.NOT_ASKED, obstacle))
    device = training.group.device
    script = _script_state(training.job.steps, device)
    written = _kept(training, script)
    checkpoint = training.strategy.checkpoint(script)
    start = training.strategy.parameters()
    expected, scales = _go_on(training, training.job.steps)
    _restart(training, folder, _OTHER_START)
    script = training.strategy.reload(checkpoint)
    _set_generators(script)
    lost = differing_names(written, _kept(training, _script_state(int(script["step"]), device)))
    found, scales_found = _go_on(training, int(script["step"]))
    errors = [_share_of_movement(one, right, start) for one, right in zip(found, expected, strict=True)]
    if scales_found != scales:
        steps = next(
            step for step, pair in enumerate(zip(scales_found, scales, strict=True)) if pair[0] != pair[1]
        )
        lost = (*lost, f"the loss scale {steps + 1} steps later")
    return replace(
        proof,
        checkpoint_identical=not lost,
        checkpoint_lost=lost,
        checkpoint_error=None if None in errors else max(error for error in errors if error is not None),
    )


def _go_on(training: VerifiedTraining, first: int) -> tuple[list[Tensors], list[float]]:
    """The parameters and the loss scale after each of the steps that follow a checkpoint."""
    parameters: list[Tensors] = []
    scales = []
    for found in run_steps(training, range(first, first + _STEPS_AFTER_RELOAD)):
        parameters.append(found)
        scales.append(training.strategy.loss_scale())
    return parameters, scales


def _kept(training: VerifiedTraining, script: ScriptState) -> Digests:
    return {**training.strategy.kept_state(), **digest_values("script", script)}


def _script_state(step: int, device: torch.device) -> ScriptState:
    """What a script must save besides its model: its step, and the states of its random number generators."""
    state: ScriptState = {"step": step, "generator": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda_generator"] = torch.cuda.get_rng_state(device)
    return state


def _set_generators(script: ScriptState) -> None:
    torch.set_rng_state(script["generator"].cpu())
    if "cuda_generator" in script:
        torch.cuda.set_rng_state(script["cuda_generator"].cpu())


def _share_of_movement(found: Tensors, expected: Tensors, start: Tensors) -> float | None:
    """The distance of `found` from `expected`, over that of `expected` from `start`; None if not finite."""
    moved = norm({name: expected[name].double() - start[name].double() for name in expected})
    gap = norm({name: found[name].double() - expected[name].double() for name in expected})
    return finite(gap / max(moved, SMALL_MOVEMENT * norm(expected)))


def _prove_repeat(training: VerifiedTraining, folder: str, tolerance: float) -> Reading[bool]:
    """Whether the first steps, from the same start, give the same bits again.

    Where the framework sums gradients in the order of their arrival, agreement within `tolerance` is enough.
    """
    _restart(training, folder, 0)
    start = training.strategy.parameters()
    digests = training.step_digests[:REPEATED_STEPS]
    expected = training.first_parameters
    found: list[Tensors] = list(run_steps(training, range(len(digests))))
    if [digests_of(parameters) for parameters in found] == digests:
        return True
    if training.strategy.fixed_order:
        return False
    errors = [_share_of_movement(one, right, start) for one, right in zip(found, expected, strict=True)]
    return all(error is not None and error <= tolerance for error in errors)


def _restart(training: VerifiedTraining, folder: str, other_start: int) -> None:
    """Restart with a new model; in a new process group if the job asks for it or the old one is closed."""
    job, group = training.job, training.group
    group.barrier()
    training.strategy.close()
    if job.fresh_groups or not dist.is_initialized():
        group.renew()
    torch.manual_seed(job.seed + group.rank + other_start)
    model = build_model(job.workload, job.seed + group.rank + other_start).to(group.device)
    training.strategy = start_strategy(Setup(job, group, model, folder))


# --- the speed

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
