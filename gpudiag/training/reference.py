"""The single-process run that everything is compared with: one plain model on the samples of all ranks."""

from dataclasses import dataclass

import torch
from torch import nn

from gpudiag.training.job import TrainingJob
from gpudiag.training.precision import Precision
from gpudiag.training.shards import Samples
from gpudiag.training.workloads import MODELS, build_model


@dataclass(frozen=True, slots=True)
class ReferenceStep:
    """What one step of the single-process run gave."""

    loss: float
    gradients: dict[str, torch.Tensor]
    skipped: bool


def make_optimizer(job: TrainingJob, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of a job for a model's parameters."""
    if job.optimizer == "adam":
        return torch.optim.Adam(model.parameters(), lr=job.learning_rate)
    return torch.optim.SGD(model.parameters(), lr=job.learning_rate, momentum=0.9)


class Reference:
    """A plain model that is trained step by step beside the parallel one, on every rank by itself."""

    def __init__(self, job: TrainingJob, device: torch.device, samples: Samples) -> None:
        """Start where rank 0 starts."""
        self._job = job
        self._device = device
        self._samples = samples
        self.model = build_model(job.workload, job.seed).to(device)
        self.optimizer = make_optimizer(job, self.model)
        self._precision = Precision(job.dtype, device)

    def step(self, indices: torch.Tensor) -> ReferenceStep:
        """Train one step on those samples."""
        loss = self._backward(indices)
        scaler = self._precision.scaler
        scaler.unscale_(self.optimizer)
        gradients = self._gradients()
        scale = scaler.get_scale()
        scaler.step(self.optimizer)
        scaler.update()
        return ReferenceStep(loss, gradients, skipped=scaler.get_scale() < scale)

    def own_gradients(self, indices: torch.Tensor) -> dict[str, torch.Tensor]:
        """The gradients of those samples alone, at the present parameters; no step is made."""
        self._backward(indices)
        scale = self._precision.scaler.get_scale()
        return {name: gradient / scale for name, gradient in self._gradients().items()}

    def evaluate(self, parameters: dict[str, torch.Tensor]) -> float:
        """The loss over all samples with other parameters, in float32."""
        inputs, targets = self._samples.inputs.to(self._device), self._samples.targets.to(self._device)
        with torch.no_grad():
            outputs = torch.func.functional_call(self.model, parameters, (inputs,))
            return float(MODELS[self._job.workload].loss(outputs, targets))

    def parameters(self) -> dict[str, torch.Tensor]:
        """The present parameters, by name."""
        return {name: parameter.detach() for name, parameter in self.model.named_parameters()}

    def state_elements(self) -> int:
        """How many elements the optimizer keeps beside the parameters."""
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
    """Elements of the tensors with more than one of them that an optimizer keeps on this rank."""
    tensors = [value for state in optimizer.state.values() for value in state.values()]
    local = [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors]
    return sum(tensor.numel() for tensor in local if isinstance(tensor, torch.Tensor) and tensor.dim() > 0)
