"""The single-process run that everything is compared with: one plain model on the samples of all ranks."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from gpudiag.training.precision import Precision
from gpudiag.training.training_job import TrainingJob
from gpudiag.training.workloads import MODELS, Samples, build_model


@dataclass(frozen=True, slots=True)
class ReferenceStep:
    """The result of one step of the single-process run."""

    loss: float
    gradients: dict[str, torch.Tensor]
    skipped: bool


MOMENTUM = 0.9
# The settings of torch's optimizers on which a step's result depends; the others choose how it is computed.
SETTINGS = ("lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize", "betas", "eps", "amsgrad")


def make_optimizer(job: TrainingJob, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of a job for a model's parameters."""
    if job.optimizer == "adam":
        return torch.optim.Adam(model.parameters(), lr=job.learning_rate)
    return torch.optim.SGD(model.parameters(), lr=job.learning_rate, momentum=MOMENTUM)


class Reference:
    """A plain model, trained on every rank step by step beside the parallel one, without communication."""

    def __init__(self, job: TrainingJob, device: torch.device, samples: Samples) -> None:
        """Start with rank 0's parameters."""
        self._job = job
        self._device = device
        self._samples = samples
        self.model = build_model(job.workload, job.seed).to(device)
        self.optimizer = make_optimizer(job, self.model)
        self._precision = Precision(job, device)

    def step(self, indices: torch.Tensor) -> ReferenceStep:
        """The loss and the gradients of one training step on those samples."""
        found = self.look(indices)
        if not found.skipped:
            self.optimizer.step()
        return found

    def look(self, indices: torch.Tensor) -> ReferenceStep:
        """The loss and the gradients of those samples; updates the loss scaler, but takes no step."""
        loss = self._backward(indices)
        scaler = self._precision.scaler
        scaler.unscale_(self.optimizer)
        gradients = self._gradients()
        scale = scaler.get_scale()
        scaler.update()
        return ReferenceStep(loss, gradients, skipped=scaler.get_scale() < scale)

    def follow(self, parameters: Mapping[str, torch.Tensor]) -> None:
        """Copy `parameters` into the model; the optimizer's state stays as it is."""
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(parameters[name])

    def step_with(self, gradients: Mapping[str, torch.Tensor]) -> None:
        """Step the optimizer with the gradients of another run."""
        for name, parameter in self.model.named_parameters():
            parameter.grad = gradients[name].to(parameter.dtype) if name in gradients else None
        self.optimizer.step()

    def alone(self, indices: torch.Tensor) -> ReferenceStep:
        """The loss and the gradients of one rank's samples; takes no step, and keeps the loss scale."""
        loss = self._backward(indices)
        scale = self._precision.scaler.get_scale()
        gradients = {name: gradient / scale for name, gradient in self._gradients().items()}
        return ReferenceStep(loss, gradients, skipped=False)

    def gradients_at(
        self, parameters: Mapping[str, torch.Tensor], indices: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """The gradients of those samples at `parameters`; leaves the model as it is."""
        inputs = self._samples.inputs[indices].to(self._device)
        targets = self._samples.targets[indices].to(self._device)
        leaves = {name: value.clone().requires_grad_() for name, value in parameters.items()}
        with self._precision.autocast():
            outputs = torch.func.functional_call(self.model, leaves, (inputs,))
        scale = self._precision.scaler.get_scale()
        loss = MODELS[self._job.workload].loss(outputs.float(), targets) * scale
        gradients = torch.autograd.grad(loss, list(leaves.values()))
        return {name: gradient / scale for name, gradient in zip(leaves, gradients, strict=True)}

    def evaluate(self, parameters: dict[str, torch.Tensor]) -> float:
        """The loss over all samples with `parameters`, in float32."""
        inputs, targets = self._samples.inputs.to(self._device), self._samples.targets.to(self._device)
        with torch.no_grad():
            outputs = torch.func.functional_call(self.model, parameters, (inputs,))
            return float(MODELS[self._job.workload].loss(outputs, targets))

    def parameters(self) -> dict[str, torch.Tensor]:
        """The current parameters, by name."""
        return {name: parameter.detach() for name, parameter in self.model.named_parameters()}

    def state_elements(self) -> int:
        """The number of elements in the optimizer's state."""
        return count_state(self.optimizer)

    def _backward(self, indices: torch.Tensor) -> float:
        inputs = self._samples.inputs[indices].to(self._device)
        targets = self._samples.targets[indices].to(self._device)
        self.optimizer.zero_grad(set_to_none=True)
        with self._precision.autocast():
            outputs = self.model(inputs)
        loss = MODELS[self._job.workload].loss(outputs.float(), targets)
        self._precision.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    def _gradients(self) -> dict[str, torch.Tensor]:
        return {
            name: parameter.grad.detach().clone()
            for name, parameter in self.model.named_parameters()
            if parameter.grad is not None
        }


def count_state(optimizer: torch.optim.Optimizer) -> int:
    """The number of elements in an optimizer's state on this rank, scalars left out."""
    tensors = [value for state in optimizer.state.values() for value in state.values()]
    local = [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors]
    return sum(tensor.numel() for tensor in local if isinstance(tensor, torch.Tensor) and tensor.dim() > 0)
