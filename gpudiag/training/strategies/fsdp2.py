"""FSDP2 (`fully_shard`): every rank keeps its shard of parameters, gradients and optimizer state."""

from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from gpudiag.training.strategies.base import Setup, Strategy, broadcast_model
from gpudiag.training.tensors import difference


class Fsdp2Strategy(Strategy):
    """Every layer with parameters is sharded by itself, and the model around them.

    `fully_shard` keeps the start that each rank has, so it is made the same before.
    """

    def _wrap(self, setup: Setup) -> nn.Module:
        if setup.broadcasts:
            broadcast_model(setup.group, setup.model)
        with setup.group.announced("wrap"):
            mesh = init_device_mesh(setup.group.device.type, (setup.group.world_size,))
            for layer in setup.model.children():
                if any(True for _ in layer.parameters()):
                    fully_shard(layer, mesh=mesh)
            fully_shard(setup.model, mesh=mesh)
        return setup.model

    def gradients(self) -> dict[str, torch.Tensor]:
        """The whole gradients, put together from the shards of all ranks."""
        with self.group.announced("gather"):
            return {
                name: _whole(value.grad)
                for name, value in self.plain.named_parameters()
                if value.grad is not None
            }

    def parameters(self) -> dict[str, torch.Tensor]:
        """The whole parameters, put together from the shards of all ranks."""
        with self.group.announced("gather"):
            return {name: _whole(value) for name, value in self.plain.named_parameters()}

    def overwrite_gradient(self, name: str, whole: torch.Tensor) -> None:
        """Put this rank's part of another gradient in the place of that parameter's."""
        gradient = self.plain.get_parameter(name).grad
        if isinstance(gradient, DTensor):
            parts = whole.chunk(self.group.world_size)
            if self.group.rank < len(parts):
                gradient.to_local().copy_(parts[self.group.rank])

    def own_error(self, own: dict[str, torch.Tensor]) -> float | None:
        """How far this rank's shards of the gradients are from those of its own samples alone."""
        here, expected = {}, {}
        for name, value in self.plain.named_parameters():
            parts = own[name].chunk(self.group.world_size)
            if value.grad is not None and self.group.rank < len(parts):
                here[name], expected[name] = _local(value.grad), parts[self.group.rank]
        return difference(here, expected)

    def parameters_here(self) -> int:
        """Elements of the shards on this rank."""
        return sum(_local(value).numel() for value in self.plain.parameters())

    def _state(self) -> dict[str, Any]:
        state: dict[str, Any] = {
            "model": {name: _local(value) for name, value in self.plain.state_dict().items()},
            "optimizer": {},
            "scaler": self.precision.scaler.state_dict(),
        }
        for name, parameter in self.plain.named_parameters():
            kept = self.optimizer.state[parameter]
            state["optimizer"][name] = {key: _local(value) for key, value in kept.items()}
        return state

    def _load(self, state: dict[str, Any]) -> None:
        with torch.no_grad():
            for name, value in self.plain.state_dict().items():
                _local(value).copy_(state["model"][name])
        for name, parameter in self.plain.named_parameters():
            kept = state["optimizer"][name]
            self.optimizer.state[parameter] = {key: _like(parameter, value) for key, value in kept.items()}
        self.precision.scaler.load_state_dict(state["scaler"])


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    return tensor.full_tensor().clone() if isinstance(tensor, DTensor) else tensor.clone()


def _local(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _like(parameter: torch.Tensor, local: torch.Tensor) -> torch.Tensor:
    """Optimizer state as it lies beside that parameter: sharded, unless it is a single number."""
    if local.dim() == 0 or not isinstance(parameter, DTensor):
        return local
    return DTensor.from_local(
        local,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
