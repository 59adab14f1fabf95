"""Verified training on one rank: after every step, everything is compared with the single-process run.

Every rank has all samples, so it can compute any rank's gradient. A gradient that is wrong by a fault of
logic is a sum of these with weights other than one over their number, or that of another step; a corrupt one
is neither.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from gpudiag.model.codec import encode
from gpudiag.model.reading import NOT_ASKED, Reading
from gpudiag.model.training import GradientParts, RankEpochEnd, RankStart, RankStep, StepParts
from gpudiag.ranks.rank.device import read_device_uuid
from gpudiag.training.faults import BADINIT, NAN, NOSET_EPOCH, NOSYNC, ONEBIAS, SAMEDATA, SUMGRAD, UNEVEN
from gpudiag.training.precision import gradient_tolerance, parameter_tolerance
from gpudiag.training.reference import Reference
from gpudiag.training.strategies.base import Strategy
from gpudiag.training.tensors import DTensor, describe, difference, digest, finite, norm, projection
from gpudiag.training.workloads import MODELS, Batch, Epochs

# --- what a wrong step is made of

# With more ranks, parts are not looked for: each takes a forward and a backward pass.
_RANKS_AT_MOST = 64
# The elements with the largest errors that make up this share of the squared error count as off.
_NEARLY_ALL = 0.999
# Relative to the size of the summands, another order of a sum changes less than this, a flipped bit more.
_FLIP_ERROR = 1e-5
_FLIPS_AT_MOST = 4
_SHORTER = (torch.bfloat16, torch.float16)

Tensors = Mapping[str, torch.Tensor]


@dataclass
class PartsFinder:
    """Finds the parts, and keeps the previous step, which may be one of them."""

    reference: Reference
    before: Tensors  # this rank's parameters before the coming step
    gradient_tolerance: float
    parameter_tolerance: float
    own_part: Callable[[Tensors], Tensors]  # of what is the whole model's
    _expected: Tensors = field(default_factory=dict)  # gradients of this step
    _expected_before: Tensors = field(default_factory=dict)
    _samples: tuple[Tensors, Sequence[torch.Tensor]] | None = None  # at which parameters, of which indices
    _found: Tensors = field(default_factory=dict)
    _movement: Tensors = field(default_factory=dict)

    def of_gradient(
        self, found: Tensors, expected: Tensors, floor: float, at: Tensors, indices: Sequence[torch.Tensor]
    ) -> GradientParts | None:
        """The parts of this step's gradient; None if it is right or not finite, or there are too many ranks.

        `at` are the single process's parameters before the step, `indices` the samples of each rank.
        """
        before, self._expected = self._expected, expected
        self._expected_before = before
        samples_before, self._samples = self._samples, (at, indices)
        found_before, self._found = self._found, found
        scale = max(norm(expected), floor) or 1.0
        names = _off(found, expected, self.gradient_tolerance * scale)
        if not names or len(indices) > _RANKS_AT_MOST:
            return None
        wanted, have = _flat(expected, names), _flat(found, names)
        of_ranks = [_flat(self.reference.gradients_at(at, one), names) for one in indices]
        shares, rest = _fit(have, of_ranks)
        off = _off_most(have - wanted)
        few = len(off) <= min(_FLIPS_AT_MOST, len(wanted) // 2)
        shares_before: tuple[float, ...] = ()
        rest_with_before = None
        if samples_before is not None and 2 * len(indices) < len(wanted):
            at_before, of_before = samples_before
            earlier = [_flat(self.reference.gradients_at(at_before, one), names) for one in of_before]
            fitted, left = _fit(have, [*of_ranks, *earlier])
            shares_before, rest_with_before = fitted[len(indices) :], finite(left / scale)
        return GradientParts(
            tensors=tuple(names),
            shares=shares,
            rest=finite(rest / scale),
            step_before=_gap(_flat(self.own_part(found), names), self.own_part(before), names, scale),
            accumulated=_gap(have - wanted, found_before, names, scale),
            elements_off=len(off),
            elements=len(wanted),
            rounded_to=_rounded_to([found[name] for name in found]),
            flipped_ranks=find_flipped_ranks(have[off], [one[off] for one in of_ranks]) if few else (),
            flipped_average=few and is_flipped(have[off], wanted[off]),
            shares_before=shares_before,
            rest_with_before=rest_with_before,
        )

    def of_step(self, found: Tensors, expected: Tensors, at: Tensors) -> StepParts | None:
        """The parts of this step's movement; None if the parameters that this rank keeps are right or not finite.

        `at` are the single process's parameters before the step.
        """
        found, expected, at = self.own_part(found), self.own_part(expected), self.own_part(at)
        start, self.before = self.before, found
        wanted = {name: expected[name].double() - at[name].double() for name in expected}
        movement_before, self._movement = self._movement, wanted
        names = _off(found, expected, self.parameter_tolerance * (norm(expected) or 1.0))
        if not names:
            return None
        moved = {name: found[name].double() - start[name].double() for name in names}
        right, have = _flat(wanted, names), _flat(moved, names)
        (scale, decay), rest = _fit(have, [right, _flat(start, names)])
        _, rest_without_decay = _fit(have, [right])
        size = float(right.norm()) or 1.0
        return StepParts(
            tensors=tuple(names),
            unmoved=tuple(name for name in names if found[name].equal(start[name])),
            scale=scale,
            decay=-decay,
            rest=finite(rest / size),
            step_before=_gap(have, movement_before, names, size),
            elements_off=len(_off_most(_flat(found, names) - _flat(expected, names))),
            elements=len(right),
            rest_without_decay=finite(rest_without_decay / size),
            rest_of_gradient_before=self._rest_of_gradient_before(have - right, names, size),
            rounded_to=_rounded_to([found[name] for name in found]),
        )

    def _rest_of_gradient_before(
        self, error: torch.Tensor, names: Sequence[str], size: float
    ) -> float | None:
        """What is left of a movement's error if the step took the gradients of the step before; None without one."""
        if any(name not in self._expected_before for name in names):
            return None
        now, before = self.own_part(self._expected), self.own_part(self._expected_before)
        _, rest = _fit(error, [_flat(before, names) - _flat(now, names)])
        return finite(rest / size)


def changed_parts(
    inputs: torch.Tensor, targets: torch.Tensor, right: tuple[torch.Tensor, torch.Tensor]
) -> tuple[str, ...]:
    """Which of a batch's inputs and targets differ from the data set; not those with NaN or infinity."""
    pairs = (("inputs", inputs, right[0]), ("targets", targets, right[1]))
    return tuple(
        name
        for name, found, expected in pairs
        if not found.equal(expected) and bool(torch.isfinite(found).all())
    )


def _off(found: Tensors, expected: Tensors, limit: float) -> list[str]:
    """The names of the tensors that are off; all of them if only their total error is over `limit`."""
    error = difference(found, expected)
    gaps = {name: float((found[name].double() - expected[name].double()).norm()) for name in found}
    whole = norm({name: found[name].double() - expected[name].double() for name in found})
    if error is None or whole <= limit or found.keys() != expected.keys():
        return []
    return [name for name, gap in gaps.items() if gap > limit] or list(found)


def _flat(tensors: Tensors, names: Iterable[str]) -> torch.Tensor:
    return torch.cat([tensors[name].detach().double().flatten().cpu() for name in names])


def _fit(found: torch.Tensor, parts: Sequence[torch.Tensor]) -> tuple[tuple[float, ...], float]:
    """The least-squares coefficient of each part in `found`, and the norm of the residual."""
    columns = torch.stack(list(parts), dim=1)
    shares = torch.linalg.lstsq(columns, found.unsqueeze(1)).solution.squeeze(1)
    return tuple(float(share) for share in shares), float((found - columns @ shares).norm())


def _gap(found: torch.Tensor, expected: Tensors, names: Sequence[str], scale: float) -> float | None:
    """The error against another step's tensors, over `scale`; None if there is no such step."""
    if any(name not in expected for name in names):
        return None
    return finite(float((found - _flat(expected, names)).norm()) / scale)


def _off_most(error: torch.Tensor) -> torch.Tensor:
    """The indices of the elements that make up nearly all of an error."""
    squares = error.square().sort(descending=True)
    sums = squares.values.cumsum(0)
    return squares.indices[: int((sums < _NEARLY_ALL * sums[-1]).sum()) + 1]


def find_flipped_ranks(found: torch.Tensor, of_ranks: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """The ranks where one flipped bit in each of these elements of their gradient explains the average.

    Some frameworks divide by the number of ranks before the sum, and some after it.
    """
    ranks = len(of_ranks)
    parts = torch.stack([own / ranks for own in of_ranks])
    limit = _FLIP_ERROR * (found.abs() + parts.abs().sum(0))
    handed_in = [found - (parts.sum(0) - part) for part in parts]
    return tuple(
        rank
        for rank, part in enumerate(parts)
        if _is_flip(handed_in[rank], part, limit)
        or _is_flip(ranks * handed_in[rank], ranks * part, ranks * limit)
    )


def is_flipped(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Whether one flipped bit in each element of `wanted` explains `found`."""
    return _is_flip(found, wanted, _FLIP_ERROR * (found.abs() + wanted.abs()))


def _is_flip(found: torch.Tensor, right: torch.Tensor, limit: torch.Tensor) -> bool:
    bits = right.float().view(torch.int32).unsqueeze(1)
    masks = torch.tensor([1 << bit for bit in range(31)] + [-(1 << 31)], dtype=torch.int32)
    flipped = (bits ^ masks).view(torch.float32).double()
    return bool(((flipped - found.unsqueeze(1)).abs() <= limit.unsqueeze(1)).any(1).all())


def _rounded_to(found: Sequence[torch.Tensor]) -> str | None:
    """The name of a 16-bit dtype that holds all these numbers exactly; None if neither does."""
    for dtype in _SHORTER:
        if all(tensor.to(dtype).to(tensor.dtype).equal(tensor) for tensor in found):
            return str(dtype).removeprefix("torch.")
    return None


class OwnGradients:
    """Each parameter's gradient from autograd in this rank's last backward pass, before averaging."""

    def __init__(self, model: nn.Module) -> None:
        """Hook the model's parameters; torch runs these hooks before those that average.

        Where they are sharded, the tensors that autograd sees exist only from a layer's call on.
        """
        self._kept: dict[str, torch.Tensor] = {}
        self._of_tensors: dict[str, Any] = {}
        self._of_layers = [
            layer.register_forward_pre_hook(self._watch(name))
            for name, layer in model.named_modules()
            if any(True for _ in layer.parameters(recurse=False))
        ]

    def take(self, scale: float) -> dict[str, torch.Tensor]:
        """The gradients since the last call, over the loss scale, by name."""
        kept, self._kept = self._kept, {}
        return {name: gradient / scale for name, gradient in kept.items()}

    def stop(self) -> None:
        """Remove the hooks."""
        for hook in (*self._of_layers, *self._of_tensors.values()):
            hook.remove()

    def _watch(self, layer_name: str) -> Callable[[nn.Module, Any], None]:
        def watch(layer: nn.Module, _: Any) -> None:
            for short, parameter in layer.named_parameters(prefix=layer_name, recurse=False):
                if short in self._of_tensors:
                    self._of_tensors.pop(short).remove()
                if torch.is_grad_enabled() and not isinstance(parameter, DTensor):
                    self._of_tensors[short] = parameter.register_hook(partial(self._keep, short))  # type: ignore[no-untyped-call]

        return watch

    def _keep(self, name: str, gradient: torch.Tensor) -> None:
        self._kept[name] = gradient.detach().clone()


# --- the training

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
                step_parts=self._parts.of_step(parameters, reference, at),
                gradients_left=gradients_left,
                noise=noise if noise != noise_before else None,
            ),
        )

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
            parameters_rounded_to=_rounded_to(list(self.start.values())),
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


def run_steps(training: VerifiedTraining, steps: range) -> Iterator[dict[str, torch.Tensor]]:
    """All parameters after each of those steps, which are trained without verification."""
    for step in steps:
        training.train_step(training.batch_of(step))
        yield training.strategy.parameters()


def digests_of(parameters: Mapping[str, torch.Tensor]) -> tuple[str, ...]:
    """The digest of each parameter."""
    return tuple(fact.digest for fact in describe(parameters))
