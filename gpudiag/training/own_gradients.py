"""What a rank computed by itself in a backward pass, kept before a strategy averages it over the ranks."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor


class OwnGradients:
    """The gradient of each parameter as autograd hands it over, in the last backward pass of this rank."""

    def __init__(self, model: nn.Module) -> None:
        """Watch the model's parameters from now on; torch calls these before what averages.

        Where they are sharded, those that autograd sees are there from a layer's call on.
        """
        self._kept: dict[str, torch.Tensor] = {}
        self._of_tensors: dict[str, Any] = {}
        self._of_layers = [
            layer.register_forward_pre_hook(self._watch(name))
            for name, layer in model.named_modules()
            if any(True for _ in layer.parameters(recurse=False))
        ]

    def take(self, scale: float) -> dict[str, torch.Tensor]:
        """What came since the last time, over the loss scale."""
        kept, self._kept = self._kept, {}
        return {name: gradient / scale for name, gradient in kept.items()}

    def stop(self) -> None:
        """Watch no longer."""
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
