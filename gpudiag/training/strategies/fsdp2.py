"""FSDP2 (`fully_shard`): every rank keeps its shard of parameters, gradients and optimizer state."""

from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh

from gpudiag.model.training import KeptTensor
from gpudiag.training.strategies.base import ScriptState, Setup, Strategy, broadcast_model
from gpudiag.training.tensors import DTensor, Tensors, difference, local_part

try:
    from torch.distributed.fsdp import fully_shard
except ImportError:  # torch 2.4 and 2.5, where it was not public yet
    from torch.distributed._composable.fsdp import fully_shard  # type: ignore[attr-defined]


class Fsdp2Strategy(Strategy):
    """Shards every layer with parameters by itself, and then the model around them.

    `fully_shard` keeps each rank's own start, so all ranks are given the same one before.
    """

    def _wrap(self, setup: Setup) -> nn.Module:
        self._folder = setup.folder
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
        """The whole gradients, gathered from the shards of all ranks."""
        with self.group.announced("gather"):
            return {
                name: _whole(value.grad)
                for name, value in self.plain.named_parameters()
                if value.grad is not None
            }

    def parameters(self) -> dict[str, torch.Tensor]:
        """The whole parameters, gathered from the shards of all ranks."""
        with self.group.announced("gather"):
            return {name: _whole(value) for name, value in self.plain.named_parameters()}

    def overwrite_gradient(self, name: str, whole: torch.Tensor) -> None:
        """Replace this rank's shard of that parameter's gradient."""
        gradient = self.plain.get_parameter(name).grad
        if isinstance(gradient, DTensor):
            parts = whole.chunk(self.group.world_size)
            if self.group.rank < len(parts):
                gradient.to_local().copy_(parts[self.group.rank])

    def own_part(self, whole: Tensors) -> Tensors:
        """The rows of each tensor that this rank keeps; none of a tensor that others keep."""
        size, rank = self.group.world_size, self.group.rank
        sharded = {name for name, value in self.plain.named_parameters() if isinstance(value, DTensor)}
        parts = {}
        for name, value in whole.items():
            chunks = value.chunk(size) if name in sharded else (value,) * size
            parts[name] = chunks[rank] if rank < len(chunks) else value[:0]
        return parts

    def own_error(self, own: dict[str, torch.Tensor]) -> float | None:
        """The difference of this rank's gradient shards from those of its samples; None without a shard."""
        here, expected = self._shards(own)
        return difference(here, expected) if expected else None

    def held_error(self, expected: Tensors, floor: float) -> float | None:
        """The difference of this rank's averaged gradient shards from `expected`; None without a shard."""
        here, parts = self._shards(expected)
        return difference(here, parts, floor) if parts else None

    def _shards(self, whole: Tensors) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """This rank's shards of the gradients, and the same parts of `whole`."""
        here, parts = {}, {}
        for name, value in self.plain.named_parameters():
            chunks = whole[name].chunk(self.group.world_size)
            if value.grad is not None and self.group.rank < len(chunks):
                here[name], parts[name] = local_part(value.grad), chunks[self.group.rank]
                if here[name].shape != parts[name].shape:  # another number of shards than of ranks
                    del here[name], parts[name]
        return here, parts

    def parameters_here(self) -> int:
        """The number of elements of the shards on this rank."""
        return sum(local_part(value).numel() for value in self.plain.parameters())

    def parameters_kept(self) -> tuple[KeptTensor, ...]:
        """The number of elements of each parameter on this rank, and of the whole one."""
        named = self.plain.named_parameters()
        return tuple(KeptTensor(name, local_part(value).numel(), value.numel()) for name, value in named)

    @property
    def checkpoint_obstacle(self) -> str | None:
        """Why no checkpoint can be tried: DCP needs a shared folder, and NumPy to exchange objects."""
        if not self.group.on_one_host:
            return "torch.distributed.checkpoint needs a folder that all hosts share"
        return None if _has_numpy() else "torch.distributed.checkpoint needs NumPy"

    def checkpoint(self, script: ScriptState) -> Any:
        """A checkpoint in the run's folder, by torch's own distributed checkpoint (DCP)."""
        place = [f"{self._folder}/checkpoint"]
        with self.group.announced("checkpoint"):
            torch.distributed.broadcast_object_list(place)  # every rank writes its part to rank 0's folder
            save(self._state(script), checkpoint_id=place[0])
        return place[0], {name: _blank(value) for name, value in script.items()}

    def reload(self, checkpoint: Any) -> ScriptState:
        """Load a checkpoint; the script's state in it."""
        folder, script = checkpoint
        state = self._state(script)  # which DCP fills in place
        with self.group.announced("checkpoint"):
            load(state, checkpoint_id=folder)
        set_state_dict(
            self.plain,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        self.precision.scaler.load_state_dict(state["scaler"])
        found: ScriptState = state[self._own_key]
        return found

    @property
    def _own_key(self) -> str:
        """A key per rank: of what ranks write under the same key, DCP keeps only one rank's."""
        return f"script{self.group.rank}"

    def _state(self, script: ScriptState) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.plain, self.optimizer)
        scaler = self.precision.scaler.state_dict()
        return {"model": model, "optimizer": optimizer, "scaler": scaler, self._own_key: script}


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    return tensor.full_tensor().clone() if isinstance(tensor, DTensor) else tensor.clone()


def _has_numpy() -> bool:
    """Whether torch can use NumPy; an installed one may be incompatible."""
    try:
        torch.empty(0).numpy()
    except RuntimeError:
        return False
    return True


def _blank(value: Any) -> Any:
    """A blank value of the same type, to be filled."""
    return torch.zeros_like(value) if isinstance(value, torch.Tensor) else type(value)()
