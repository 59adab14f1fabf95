"""Verified training on one rank: after every step, everything is compared with the single-process run.

Every rank has all samples. A gradient wrong by logic is a sum of the ranks' with other weights, or of another
step; a corrupt one is neither.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from gpudiag.model.codec import encode
from gpudiag.model.reading import NOT_ASKED, Reading
from gpudiag.model.training import RankEpochEnd, RankStart, RankStep
from gpudiag.ranks.rank.device import read_device_uuid
from gpudiag.training.faults import BADINIT, NAN, NOSET_EPOCH, NOSYNC, ONEBIAS, SAMEDATA, SUMGRAD, UNEVEN
from gpudiag.training.gradient_diagnosis import OwnGradients, PartsFinder, changed_parts, rounded_to
from gpudiag.training.precision import gradient_tolerance, parameter_tolerance
from gpudiag.training.reference import SETTINGS, Reference
from gpudiag.training.strategies.base import Strategy
from gpudiag.training.tensors import describe, difference, digest, finite, norm, projection
from gpudiag.training.workloads import MODELS, Batch, Epochs

# Faults that act from the start; the others are announced when they act.
_FROM_THE_START = frozenset((SUMGRAD, SAMEDATA, BADINIT, ONEBIAS))

REPEATED_STEPS = 3

# A model that has fully learned has next to no gradient but the rounding of large terms that cancel:
# below this share of the first gradient's norm, errors are relative to that share.
SMALL_GRADIENT = 0.05


class VerifiedTraining:
    """The verified steps of one rank, each emitted to the agent with its comparison."""

    def __init__(self, strategy: Strategy, epochs: Epochs) -> None:
        """Prepare; nothing is emitted before `run`."""
        self.strategy = strategy
        self.epochs = epochs
        self.job = strategy.job
        self.group = strategy.group
        self.reference = Reference(self.job, self.group.device, epochs.samples)
        self.start = strategy.parameters()
        self.step_digests: list[tuple[str, ...]] = []
        self.first_parameters: list[dict[str, torch.Tensor]] = []  # after the steps that are repeated
        self._loss = MODELS[self.job.workload].loss
        self._fired: set[str] = set()
        self._small_gradient = 0.0
        # In half precision, rounding alone makes two runs diverge. There the reference starts each step from
        # the strategy's parameters, and steps with its gradients once these were compared.
        self._follows = self.job.dtype != "float32"
        self._parameters = self.start
        self.gradients_here: Reading[int] = NOT_ASKED
        device = self.group.device.type
        self._tolerance_gradient = gradient_tolerance(self.job, device)
        self._tolerance_parameter = parameter_tolerance(self.job, device)
        self._parts = PartsFinder(
            self.reference,
            strategy.own_part(self.start),
            self._tolerance_gradient,
            self._tolerance_parameter,
            strategy.own_part,
        )
        self._own = OwnGradients(strategy.plain)

    def run(self) -> bool:
        """Train all steps and emit each; True if the ranks ran out of data at different steps."""
        self._emit_start()
        epochs = -(-self.job.steps // self.job.steps_per_epoch)
        uneven = any(self._run_epoch(epoch) for epoch in range(epochs))  # none follows an uneven one
        self._own.stop()
        return uneven

    def train_step(self, batch: Batch) -> torch.Tensor:
        """The loss of this rank's samples in one training step without verification."""
        _, inputs, targets = batch
        strategy = self.strategy
        strategy.zero_gradients()
        with self.group.announced("training_step"):
            loss = self._loss(strategy.forward(inputs.to(self.group.device)), targets.to(self.group.device))
            strategy.backward(loss)
            strategy.step()
        return loss.detach()

    def look_again(self, step: int) -> None:
        """Emit one more step after the timed ones, compared with a single process.

        The single process starts from rank 0's parameters, which every rank should have.
        """
        strategy, device = self.strategy, self.group.device
        epoch, place = divmod(step, self.job.steps_per_epoch)
        indices, inputs, targets = self.batch_of(step)
        before = strategy.parameters()
        of_first = {name: value.clone() for name, value in before.items()}
        for value in of_first.values():
            self.group.broadcast(value)
        self.reference.follow(before)
        own = self.reference.alone(indices).gradients
        self.reference.follow(of_first)
        expected = self.reference.look(torch.cat([rank[place] for rank in self.epochs.intended(epoch)]))
        strategy.zero_gradients()
        with self.group.announced("training_step"):
            loss = self._loss(strategy.forward(inputs.to(device)), targets.to(device))
            strategy.backward(loss)
        gradients, own_error = strategy.gradients(), strategy.own_error(own)
        with self.group.announced("optimizer_step"):
            stepped = strategy.step()
        self._emit(
            "late_step",
            RankStep(
                rank=self.group.rank,
                step=step,
                epoch=epoch,
                samples=tuple(indices.tolist()),
                loss=finite(float(loss.detach())),
                reference_loss=finite(expected.loss),
                gradients=describe(gradients, expected.gradients, self._small_gradient),
                gradient_error=difference(gradients, expected.gradients, self._small_gradient),
                gradient_scale=projection(gradients, expected.gradients) if gradients else None,
                own_gradient_error=own_error,
                parameters=describe(before, of_first),
                parameter_error=difference(before, of_first),
                buffers=describe(strategy.buffers()),
                unused=tuple(name for name in of_first if name not in gradients),
                skipped=expected.skipped or not stepped,
            ),
        )

    def held_bytes(self) -> int:
        """Bytes on the strategy's device that the comparison keeps: not the strategy's own memory."""
        model, optimizer = self.reference.model, self.reference.optimizer
        states = [value for state in optimizer.state.values() for value in state.values()]
        kept = [self.start, *self.first_parameters]
        tensors = [
            *model.parameters(),
            *model.buffers(),
            *(parameter.grad for parameter in model.parameters() if parameter.grad is not None),
            *(value for value in states if isinstance(value, torch.Tensor)),
            *(value for parameters in kept for value in parameters.values()),
        ]
        return sum(tensor.nbytes for tensor in tensors if tensor.device.type == self.group.device.type)

    def batch_of(self, step: int) -> Batch:
        """This rank's batch at any step, also beyond the verified ones."""
        epoch, place = divmod(step, self.job.steps_per_epoch)
        for number, batch in enumerate(self.epochs.batches(epoch)):
            if number == place:
                return batch
        raise IndexError(step)

    def _run_epoch(self, epoch: int) -> bool:
        per_epoch = self.job.steps_per_epoch
        steps = min(per_epoch, self.job.steps - epoch * per_epoch)
        intended = self.epochs.intended(epoch)
        batches = self.epochs.batches(epoch)
        if epoch > 0:
            self._announce(NOSET_EPOCH)
        for place in range(steps):
            batch = next(batches, None)
            if self.group.minimum(int(batch is not None)) == 0:
                self._announce(UNEVEN)
                done = place + (batch is not None)
                self._emit("epoch_end", RankEpochEnd(self.group.rank, epoch, done, agreed=False))
                return True
            assert batch is not None  # noqa: S101 - the minimum over all ranks is 1
            self._run_step(epoch * per_epoch + place, epoch, batch, [rank[place] for rank in intended])
        self._emit("epoch_end", RankEpochEnd(self.group.rank, epoch, steps, agreed=True))
        return False

    def _run_step(self, step: int, epoch: int, batch: Batch, intended: list[torch.Tensor]) -> None:
        indices, inputs, targets = batch
        strategy, device = self.strategy, self.group.device
        self.group.progress.before_iteration(step)
        self._announce(NAN, step)
        if self._follows:
            self.reference.follow(self._parameters)
        own = self.reference.alone(indices)
        at = {name: value.clone() for name, value in self.reference.parameters().items()}
        take = self.reference.look if self._follows else self.reference.step
        expected = take(torch.cat(intended))
        self._small_gradient = self._small_gradient or SMALL_GRADIENT * norm(expected.gradients)
        samples = self.epochs.samples
        strategy.zero_gradients()
        gradients_left = strategy.gradients_left()
        noise_before = self._noise()
        with self.group.announced("training_step"):
            loss = self._loss(strategy.forward(inputs.to(device)), targets.to(device))
            noise = self._noise()
            scale = strategy.loss_scale()
            strategy.backward(loss)
        computed_error = self._computed_error(own.gradients, scale)
        self._spoil_gradients(step, own.gradients)
        gradients, own_error = strategy.gradients(), strategy.own_error(own.gradients)
        held_error = strategy.held_error(expected.gradients, self._small_gradient)
        self.gradients_here = strategy.gradients_here()
        with self.group.announced("optimizer_step"):
            stepped = strategy.step()
        used = strategy.gradients_kept()
        if self._follows and stepped:
            self.reference.step_with(gradients)
        self._parameters = parameters = strategy.parameters()
        reference = self.reference.parameters()
        facts = describe(parameters, reference)
        self.step_digests.append(tuple(fact.digest for fact in facts))
        if step < REPEATED_STEPS:
            self.first_parameters.append(parameters)
        self._emit(
            "step",
            RankStep(
                rank=self.group.rank,
                step=step,
                epoch=epoch,
                samples=tuple(indices.tolist()),
                loss=finite(float(loss.detach())),
                reference_loss=finite(expected.loss),
                gradients=describe(gradients, expected.gradients, self._small_gradient),
                gradient_error=difference(gradients, expected.gradients, self._small_gradient),
                gradient_scale=projection(gradients, expected.gradients) if gradients else None,
                own_gradient_error=own_error,
                parameters=facts,
                parameter_error=difference(parameters, reference),
                buffers=describe(strategy.buffers()),
                unused=tuple(name for name in reference if name not in gradients),
                skipped=expected.skipped or not stepped,
                own_reference_loss=finite(own.loss),
                changed=changed_parts(inputs, targets, (samples.inputs[indices], samples.targets[indices])),
                computed_error=computed_error,
                held_error=held_error,
                gradient_parts=self._parts.of_gradient(
                    gradients, expected.gradients, self._small_gradient, at, intended
                ),
                step_parts=self._parts.of_step(parameters, reference, at, used, self._other_settings()),
                gradients_left=gradients_left,
                noise=noise if noise != noise_before else None,
            ),
        )

    def _other_settings(self) -> tuple[str, ...] | None:
        """The settings of the optimizer that are not the plan's, in words; None if unreadable."""
        groups = getattr(self.strategy.optimizer, "param_groups", None)
        if not groups:
            return None
        wanted = self.reference.optimizer.param_groups[0]
        pairs = [
            (name, group[name], wanted[name])
            for group in groups
            for name in SETTINGS
            if name in group and name in wanted
        ]
        words = [
            f"{name} is {_short(here)}, not {_short(right)}" for name, here, right in pairs if here != right
        ]
        return tuple(dict.fromkeys(words))

    def _noise(self) -> str:
        """A digest of the state of torch's random number generator on the device of the model."""
        device = self.group.device
        return digest(torch.get_rng_state() if device.type == "cpu" else torch.cuda.get_rng_state(device))

    def _computed_error(self, own: Mapping[str, torch.Tensor], scale: float) -> Reading[float | None]:
        """The error of this rank's gradients, before averaging, against the reference on the same samples."""
        computed = self._own.take(scale)
        return difference(computed, own, self._small_gradient) if computed.keys() == own.keys() else NOT_ASKED

    def _spoil_gradients(self, step: int, own: Mapping[str, torch.Tensor]) -> None:
        """Apply the injected faults of this step to the gradients."""
        for fault in self.job.faults:
            if fault.kind == NOSYNC and fault.step == step:
                self._announce(NOSYNC, step)
                self._overwrite(own)
            elif fault.kind == SUMGRAD:
                whole = self.strategy.gradients()
                self._overwrite({name: self.job.workers * whole[name] for name in whole})
            elif fault.kind == ONEBIAS:
                name = next(name for name in own if name.endswith("bias"))
                self._overwrite({name: own[name]})

    def _overwrite(self, gradients: Mapping[str, torch.Tensor]) -> None:
        for name, gradient in gradients.items():
            self.strategy.overwrite_gradient(name, gradient)

    def _emit_start(self) -> None:
        strategy, device = self.strategy, self.group.device
        for kind in _FROM_THE_START:
            self._announce(kind)
        first = self.epochs.samples.inputs[: self.job.batch_size * self.job.workers]
        strategy.show(first.to(device))
        start = RankStart(
            rank=self.group.rank,
            world_size=strategy.world_size,
            workers=strategy.workers,
            framework=strategy.version,
            device="cpu" if device.type == "cpu" else torch.cuda.get_device_name(device),
            device_uuid=read_device_uuid(device),
            parameters=describe(self.start, self.reference.parameters()),
            buffers=describe(strategy.buffers(), dict(self.reference.model.named_buffers())),
            parameters_total=sum(value.numel() for value in self.reference.model.parameters()),
            parameters_here=strategy.parameters_here(),
            steps_per_epoch=self.job.steps_per_epoch,
            sample_count=self.job.sample_count,
            stage=strategy.stage,
            tolerance_gradient=self._tolerance_gradient,
            tolerance_parameter=self._tolerance_parameter,
            parameters_kept=strategy.parameters_kept(),
            parameters_rounded_to=rounded_to(list(self.start.values())),
            foreign_in_optimizer=strategy.foreign_in_optimizer(),
        )
        self._emit("start", start)

    def _announce(self, kind: str, step: int | None = None) -> None:
        """Emit, once, that the injected fault of that kind acts now, if this rank is to report it."""
        for fault in self.job.faults:
            mine = fault.rank in (None, self.group.rank) and fault.step in (None, step)
            if fault.kind == kind and mine and fault.specification not in self._fired:
                self._fired.add(fault.specification)
                self._emit_raw({"kind": "fault", "specification": fault.specification})

    def _emit(self, kind: str, fact: Any) -> None:
        self._emit_raw({"kind": kind, **encode(fact)})

    def _emit_raw(self, data: Mapping[str, Any]) -> None:
        self.group.progress.emit(data)


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def run_steps(training: VerifiedTraining, steps: range) -> Iterator[dict[str, torch.Tensor]]:
    """All parameters after each of those steps, which are trained without verification."""
    for step in steps:
        training.train_step(training.batch_of(step))
        yield training.strategy.parameters()


def digests_of(parameters: Mapping[str, torch.Tensor]) -> tuple[str, ...]:
    """The digest of each parameter."""
    return tuple(fact.digest for fact in describe(parameters))
