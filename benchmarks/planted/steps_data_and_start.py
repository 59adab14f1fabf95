"""Faults in the steps of the optimizer, in the data, and in how ranks begin."""

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch.distributed as dist

from benchmarks.planted.importing import AfterImport
from benchmarks.planted.planting import (
    after,
    fault,
    is_guilty,
    left_out,
    on_batches,
    on_ddp,
    on_sharded_gradients,
    on_steps,
    parameters_of,
    put,
    with_settings,
    without_momentum,
)

# What the optimizer does.


@fault
def no_step_on_one_rank() -> None:
    """One rank leaves one step out."""
    on_steps(left_out, chosen=is_guilty)


def at_other_rate(chosen: Callable[[], bool]) -> None:
    """Twice the learning rate."""
    on_steps(with_settings(lr=0.1), chosen=chosen)


@fault
def twice_the_rate() -> None:
    """Twice the learning rate, on all ranks."""
    at_other_rate(lambda: True)


@fault
def twice_the_rate_on_one_rank() -> None:
    """Twice the learning rate, on one of them."""
    at_other_rate(is_guilty)


@fault
def weight_decay() -> None:
    """A decay that nobody asked for."""
    on_steps(with_settings(weight_decay=0.1))


@fault
def momentum_lost() -> None:
    """The momentum forgotten before one step."""
    on_steps(without_momentum)


def without_one_tensor(chosen: Callable[[], bool]) -> None:
    """The optimizer does not have the first parameter."""

    def act(optimizer: Any, number: int, step: Callable[[], Any]) -> Any:
        parameter = parameters_of(optimizer)[0]
        gradient, parameter.grad = parameter.grad, None
        result = step()
        parameter.grad = gradient
        return result

    on_steps(act, chosen=chosen)


@fault
def tensor_not_in_optimizer() -> None:
    """A parameter that no optimizer was given."""
    without_one_tensor(lambda: True)


@fault
def tensor_not_in_one_optimizer() -> None:
    """The same on one rank."""
    without_one_tensor(is_guilty)


# What is read.


@fault
def labels_of_one_rank() -> None:
    """One rank's targets belong to other samples of the batch."""
    on_batches(lambda batch: [*batch[:-1], batch[-1].roll(1, 0)], is_guilty)


@fault
def rows_of_one_rank() -> None:
    """One rank's inputs belong to other samples of the batch."""
    on_batches(lambda batch: [batch[0], batch[1].roll(1, 0), *batch[2:]], is_guilty)


@fault
def labels_of_all_ranks() -> None:
    """Every rank's targets belong to other samples of the batch."""
    on_batches(lambda batch: [*batch[:-1], batch[-1].roll(1, 0)], lambda: True)


@fault
def half_batches() -> None:
    """Half of each batch is dropped."""
    on_batches(lambda batch: [part[: len(part) // 2] for part in batch], lambda: True)


@fault
def same_shard() -> None:
    """Every rank's loader reads the shard of rank 0."""
    from torch.utils.data import dataloader

    def act(result: Any, self: Any, *args: Any, **named: Any) -> None:
        self.sampler.rank = 0

    after(dataloader.DataLoader, "__init__", act)


@fault
def same_shard_twice() -> None:
    """The faulty rank reads the shard of rank 0 too."""
    from torch.utils.data import dataloader

    def act(result: Any, self: Any, *args: Any, **named: Any) -> None:
        self.sampler.rank = 0 if is_guilty() else self.sampler.rank

    after(dataloader.DataLoader, "__init__", act)


@fault
def same_order() -> None:
    """The loader's sampler never receives the epoch."""
    from torch.utils.data import dataloader

    def act(result: Any, self: Any, *args: Any, **named: Any) -> None:
        self.sampler.epoch = 0

    after(dataloader.DataLoader, "__init__", act)


# How it begins.


@fault
def start_not_broadcast() -> None:
    """DDP leaves every rank its own start."""
    from torch.nn.parallel import distributed

    put(distributed, "_sync_module_states", lambda *args, **named: None)


@fault
def start_of_one_rank() -> None:
    """One rank changes one tensor after the broadcast."""

    def act(model: Any) -> None:
        if is_guilty():
            next(iter(model.parameters())).data.add_(0.01)

    on_ddp(act)


@fault
def layer_not_sharded() -> None:
    """FSDP2 ignores the parameters of one layer."""
    import torch.distributed.fsdp as fsdp

    call: Any = fsdp.fully_shard
    left: set[Any] = set()

    @wraps(call)
    def shard(module: Any, *args: Any, **named: Any) -> Any:
        if not left:
            left.update(module.parameters())
            return module
        return call(module, *args, ignored_params=left, **named)

    put(fsdp, "fully_shard", shard)


@fault
def sharded_in_pairs() -> None:
    """FSDP2 shards over pairs of ranks."""
    from torch.distributed import device_mesh

    call: Any = device_mesh.init_device_mesh

    def mesh(kind: str, shape: tuple[int, ...], **named: Any) -> Any:
        size = dist.get_world_size()
        if size < 4:
            return call(kind, shape, **named)
        whole = call(kind, (size // 2, 2), mesh_dim_names=("outer", "inner"))
        return whole["inner"]

    put(device_mesh, "init_device_mesh", mesh)


@fault
def sharded_sums() -> None:
    """FSDP2 hands over sums."""
    on_sharded_gradients(
        lambda shards: [shard.mul_(dist.get_world_size()) for shard in shards]  # type: ignore[arg-type]
    )


@fault
def stage_1_for_3() -> None:
    """DeepSpeed gets another ZeRO stage than was asked for."""

    def swap() -> None:
        deepspeed: Any = sys.modules["deepspeed"]
        start = deepspeed.initialize

        def initialize(*args: Any, config: Any, **named: Any) -> Any:
            config["zero_optimization"]["stage"] = 1
            return start(*args, config=config, **named)

        put(deepspeed, "initialize", initialize)

    AfterImport("deepspeed", swap)
