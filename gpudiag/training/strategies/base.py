"""What every strategy of torch can do; a strategy overrides what it does in its own way."""

import contextlib
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gpudiag.model.reading import NOT_ASKED, Reading
from gpudiag.model.training import KeptTensor
from gpudiag.training.group import TrainingGroup
from gpudiag.training.precision import Precision
from gpudiag.training.reference import count_state, make_optimizer
from gpudiag.training.tensors import (
    Digests,
    Tensors,
    difference,
    digest_optimizer,
    digest_values,
    local_part,
    names_by_id,
)
from gpudiag.training.training_job import TrainingJob

# About this many buckets for a model's gradients: frameworks treat the first one differently from the others.
BUCKETS = 4

ScriptState = dict[str, Any]  # numbers and tensors, by name


@dataclass(frozen=True, slots=True)
class Setup:
    """What a strategy is started with: `model` has this rank's own start, which differs from rank to rank."""

    job: TrainingJob
    group: TrainingGroup
    model: nn.Module
    folder: str  # of this run, for what a framework can only write to files
    broadcasts: bool = True  # bring every rank to the start of rank 0

    @contextlib.contextmanager
    def keeping_start(self) -> Iterator[None]:
        """Give the model this rank's own start back in the end, unless it is to be that of rank 0.

        For an injected fault, and for wrappers that always broadcast: Accelerate, and DDP before torch 2.7.
        """
        own = (
            {}
            if self.broadcasts
            else {name: value.clone() for name, value in self.model.state_dict().items()}
        )
        yield
        if own:
            self.model.load_state_dict(own)


class Strategy(ABC):
    """A model under one strategy, by default with whole parameters and gradients on every rank.

    Tensors are named as in the plain model. All ranks must call methods with "of all ranks" in their
    docstring.
    """

    framework = "torch"
    fixed_order = True  # the same gradients are summed in the same order in every run
    model: nn.Module  # the wrapped one, which is called
    plain: nn.Module  # the one inside
    optimizer: Any

    def __init__(self, setup: Setup) -> None:
        """Wrap the model, bring every rank to the same start, make the optimizer."""
        self.job = setup.job
        self.group = setup.group
        self.precision = Precision(setup.job, setup.group.device)
        self.plain = setup.model
        self.model = self._wrap(setup)
        self.optimizer = make_optimizer(self.job, self.model)

    @abstractmethod
    def _wrap(self, setup: Setup) -> nn.Module:
        """The wrapped model, to be called in place of the plain one, with the same start on every rank."""

    @property
    def world_size(self) -> int:
        """The number of workers that the framework itself reports."""
        return torch.distributed.get_world_size()

    @property
    def workers(self) -> int:
        """The number of workers seen to compute; here, the framework's own count is all that is known."""
        return self.world_size

    @property
    def version(self) -> str:
        """The framework and its version."""
        return f"torch {torch.__version__}"

    def show(self, inputs: torch.Tensor) -> None:  # noqa: B027 - most strategies need no look
        """Let the strategy see a first batch, for what shows only when the model is called."""

    @property
    def stage(self) -> int | None:
        """The ZeRO stage that the engine reports; None for an engine without stages."""
        return None

    def zero_gradients(self) -> None:
        """Clear the gradients of the last step."""
        self.optimizer.zero_grad(set_to_none=True)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The model's outputs for this rank's samples."""
        with self.precision.autocast():
            outputs: torch.Tensor = self.model(inputs)
        return outputs.float()

    def backward(self, loss: torch.Tensor) -> None:
        """Run the backward pass; it leaves the gradients averaged over all ranks, and unscaled."""
        self.precision.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        self.precision.scaler.unscale_(self.optimizer)

    def step(self) -> bool:
        """Step the optimizer; False if the loss scaler skipped the step."""
        before = self.precision.scaler.get_scale()
        self.precision.scaler.step(self.optimizer)
        self.precision.scaler.update()
        return bool(self.precision.scaler.get_scale() >= before)

    def gradients(self) -> dict[str, torch.Tensor]:
        """The whole averaged gradients, of all ranks; parameters that have none are left out."""
        return {
            name: parameter.grad.detach().clone()
            for name, parameter in self.plain.named_parameters()
            if parameter.grad is not None
        }

    def gradients_here(self) -> Reading[int]:
        """The number of gradient elements that this rank keeps between backward pass and optimizer step."""
        return sum(
            local_part(value.grad).numel() for value in self.plain.parameters() if value.grad is not None
        )

    def own_error(self, own: dict[str, torch.Tensor]) -> float | None:
        """The difference of the gradients that this rank holds from those of its own samples alone.

        Next to 0 if they were not averaged; None if this rank holds none of them.
        """
        return difference(self.gradients(), own)

    def held_error(self, expected: Tensors, floor: float) -> float | None:
        """The `difference` of this rank's part of the averaged gradients from what is expected.

        None where every rank has all of them.
        """
        return None

    def own_part(self, whole: Tensors) -> Tensors:
        """This rank's part of whole parameters or gradients; all of them where every rank has all."""
        return whole

    def gradients_left(self) -> int:
        """The number of parameters that have a gradient on this rank that is not zero."""
        kept = [value.grad for value in self.plain.parameters() if value.grad is not None]
        return sum(bool(local_part(gradient).count_nonzero()) for gradient in kept)

    def gradients_kept(self) -> dict[str, torch.Tensor]:
        """The gradients that this rank keeps for the optimizer, by name: its parts where they are sharded."""
        named = self.plain.named_parameters()
        return {name: local_part(value.grad) for name, value in named if value.grad is not None}

    def foreign_in_optimizer(self) -> Reading[int]:
        """The number of tensors that the optimizer steps and that are not the model's parameters."""
        own = {id(value) for value in self.plain.parameters()}
        stepped = (value for group in self.optimizer.param_groups for value in group["params"])
        return sum(id(value) not in own for value in stepped)

    def overwrite_gradient(self, name: str, whole: torch.Tensor) -> None:
        """Replace that parameter's gradient; for injected faults."""
        gradient = self.plain.get_parameter(name).grad
        if gradient is not None:
            gradient.copy_(whole)

    def parameters(self) -> dict[str, torch.Tensor]:
        """The whole parameters, of all ranks."""
        return {name: value.detach().clone() for name, value in self.plain.named_parameters()}

    def buffers(self) -> dict[str, torch.Tensor]:
        """The buffers of this rank."""
        return {name: value.detach() for name, value in self.plain.named_buffers()}

    def parameters_here(self) -> int:
        """The number of parameter elements that this rank keeps between steps."""
        return sum(value.numel() for value in self.plain.parameters())

    def parameters_kept(self) -> tuple[KeptTensor, ...]:
        """The same by name if parameters are sharded; empty if every rank has all of them."""
        return ()

    def optimizer_state_here(self) -> int:
        """The number of elements of optimizer state that this rank keeps."""
        return count_state(self.optimizer)

    def buckets(self) -> Reading[int]:
        """The number of buckets in which the gradients are averaged, if the framework reports it."""
        return NOT_ASKED

    def loss_scale(self) -> float:
        """The factor by which the loss is multiplied before the backward pass."""
        return float(self.precision.scaler.get_scale())

    @property
    def checkpoint_obstacle(self) -> str | None:
        """Why no checkpoint can be tried here; None if it can."""
        return None

    def kept_state(self) -> Digests:
        """The digests of all that a checkpoint must restore on this rank, by name."""
        return {
            **digest_values("model", self.plain.state_dict()),
            **digest_optimizer(self.optimizer, names_by_id(self.plain.named_parameters())),
            **digest_values("scaler", self.precision.scaler.state_dict()),
        }

    def checkpoint(self, script: ScriptState) -> Any:
        """A checkpoint of this rank's part, written to a file that disappears with this process.

        `script` is what a training script keeps besides the model on this rank; `reload` returns it.
        """
        state = {
            "model": self.plain.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.precision.scaler.state_dict(),
            "script": script,
        }
        file = tempfile.TemporaryFile()  # noqa: SIM115 - open until it was read back
        torch.save(state, file)
        return file

    def reload(self, checkpoint: Any) -> ScriptState:
        """Load a checkpoint that another object of this class wrote; the script's state in it."""
        with checkpoint:
            checkpoint.seek(0)
            state = torch.load(checkpoint, weights_only=True, map_location=self.group.device)
        self.plain.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.precision.scaler.load_state_dict(state["scaler"])
        script: ScriptState = state["script"]
        return script

    def close(self) -> None:  # noqa: B027 - most strategies hold nothing
        """Release what the framework holds; the process group stays."""


def broadcast_model(group: TrainingGroup, model: nn.Module) -> None:
    """Give every rank the parameters and buffers of rank 0."""
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            group.broadcast(tensor.detach())
