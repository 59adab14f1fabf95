"""Faults of checkpoints, and of ranks that raise or are slow."""

import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.planted.planting import WHEN, fault, is_guilty, on_batches, on_ddp, put

# What a checkpoint loses.


@fault
def optimizer_not_restored() -> None:
    """Nobody loads the optimizer's state."""
    put(torch.optim.Optimizer, "load_state_dict", lambda self, state: None)


@fault
def scaler_not_restored() -> None:
    """Nobody loads the loss scaler's state."""
    put(torch.amp.GradScaler, "load_state_dict", lambda self, state: None)


@fault
def scaler_tracker_lost() -> None:
    """The loss scaler comes back without its count of good steps."""
    call: Any = torch.amp.GradScaler.load_state_dict

    def load(self: Any, state: dict[str, Any]) -> None:
        call(self, {**state, "_growth_tracker": 0} if state else state)

    put(torch.amp.GradScaler, "load_state_dict", load)


@fault
def model_not_restored() -> None:
    """Nobody loads the parameters of one layer."""
    call: Any = torch.nn.Module.load_state_dict

    def load(self: Any, state: Any, *args: Any, **named: Any) -> Any:
        first = next(iter(state))
        return call(self, {name: value for name, value in state.items() if name != first}, strict=False)

    put(torch.nn.Module, "load_state_dict", load)


def _restored_without(part: str) -> None:
    from torch.distributed.checkpoint import state_dict_loader

    call: Any = state_dict_loader.load

    def restore(state: dict[str, Any], **named: Any) -> None:
        call({name: value for name, value in state.items() if name != part}, **named)

    put(state_dict_loader, "load", restore)


@fault
def sharded_optimizer_not_restored() -> None:
    """FSDP2's checkpoint is read without the optimizer's state."""
    _restored_without("optimizer")


@fault
def sharded_model_not_restored() -> None:
    """FSDP2's checkpoint is read without the parameters."""
    _restored_without("model")


# What ends it, or makes it slow.


@fault
def exception_on_one_rank() -> None:
    """A layer of one rank raises."""
    _raise_in_forward(is_guilty)


@fault
def exception_on_all_ranks() -> None:
    """The same layer raises on every rank."""
    _raise_in_forward(lambda: True)


def _raise_in_forward(chosen: Callable[[], bool]) -> None:
    calls = [0]

    def watch(model: Any) -> None:
        def fail(module: Any, inputs: Any) -> None:
            calls[0] += 1
            if chosen() and calls[0] > WHEN:
                raise RuntimeError("mat1 and mat2 shapes cannot be multiplied (8x5 and 4x10)")

        model.module.register_forward_pre_hook(fail)

    on_ddp(watch)


@fault
def one_rank_slow() -> None:
    """One rank sleeps in every batch."""

    def sleep(batch: list[Any]) -> list[Any]:
        time.sleep(0.08)
        return batch

    on_batches(sleep, is_guilty)
