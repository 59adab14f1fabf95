"""Mistakes of training scripts: the optimizer's place, dtypes, noise, gradients that stay or are old."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch.futures import Future

from benchmarks.planted.planting import (
    GUILTY,
    WHEN,
    Act,
    Bucket,
    Hook,
    after,
    averaged,
    fault,
    is_guilty,
    left_out,
    on_batches,
    on_ddp,
    on_sharded_gradients,
    on_steps,
    on_steps_of,
    parameters_of,
    put,
    with_hook,
    with_settings,
)

# What the optimizer is given.


@fault
def optimizer_before_sharding() -> None:
    """The optimizer gets the parameters that the model had before `fully_shard`."""
    import torch.distributed.fsdp as fsdp

    shard: Any = fsdp.fully_shard
    whole: list[torch.Tensor] = []

    @wraps(shard)
    def sharded(module: Any, *args: Any, **named: Any) -> Any:
        if not any(hasattr(one, "to_local") for one in module.parameters()):
            whole.extend(module.parameters())
        return shard(module, *args, **named)

    init: Any = torch.optim.SGD.__init__

    @wraps(init)
    def made(self: Any, params: Any, *args: Any, **named: Any) -> None:
        params = list(params)
        if whole and any(hasattr(one, "to_local") for one in params):
            params, whole[:] = list(whole), []
        init(self, params, *args, **named)

    put(fsdp, "fully_shard", sharded)
    put(torch.optim.SGD, "__init__", made)


@fault
def optimizer_of_a_copy() -> None:
    """The optimizer gets the parameters of another copy of the model than the one that DDP wraps."""
    from copy import deepcopy

    copies: list[Any] = []
    on_ddp(lambda model: copies.append(deepcopy(list(model.parameters()))))
    init: Any = torch.optim.SGD.__init__

    @wraps(init)
    def made(self: Any, params: Any, *args: Any, **named: Any) -> None:
        init(self, copies.pop() if copies else params, *args, **named)

    put(torch.optim.SGD, "__init__", made)


def _at_rate_of_one_rank(factor: float) -> None:
    """FSDP2's optimizer of one rank has another learning rate."""
    step: Any = torch.optim.SGD.step

    @wraps(step)
    def faster(self: Any, closure: Any = None) -> Any:
        if is_guilty() and any(hasattr(one, "to_local") for one in parameters_of(self)):
            for group in self.param_groups:
                group["lr"] = group.setdefault("planted", group["lr"]) * factor
        return step(self, closure)

    put(torch.optim.SGD, "step", faster)


@fault
def sharded_twice_the_rate_on_one_rank() -> None:
    """Twice the rate."""
    _at_rate_of_one_rank(2.0)


@fault
def sharded_little_more_rate_on_one_rank() -> None:
    """A rate that is 6 % higher."""
    _at_rate_of_one_rank(1.06)


# Precision and noise.


@fault
def weights_in_bfloat16() -> None:
    """The weights are rounded to bfloat16, before the first step and after each."""

    def rounded(tensors: list[torch.Tensor]) -> None:
        with torch.no_grad():
            for one in tensors:
                one.copy_(one.bfloat16().float())

    def act(optimizer: Any, number: int, step: Callable[[], Any]) -> Any:
        result = step()
        rounded(parameters_of(optimizer))
        return result

    on_steps(act)
    on_ddp(lambda model: rounded(list(model.parameters())))


@fault
def weights_rounded_after_steps() -> None:
    """The optimizer keeps its weights in bfloat16: they are rounded after each step."""

    def act(optimizer: Any, number: int, step: Callable[[], Any]) -> Any:
        result = step()
        with torch.no_grad():
            for one in parameters_of(optimizer):
                one.copy_(one.bfloat16().float())
        return result

    on_steps(act)


@fault
def sharded_weights_in_bfloat16() -> None:
    """FSDP2 shards a model whose weights were rounded to bfloat16."""
    import torch.distributed.fsdp as fsdp

    shard: Any = fsdp.fully_shard

    @wraps(shard)
    def sharded(module: Any, *args: Any, **named: Any) -> Any:
        with torch.no_grad():
            for one in module.parameters():
                one.copy_(one.bfloat16().float())
        return shard(module, *args, **named)

    put(fsdp, "fully_shard", sharded)


def _with_noise(drop: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Pass the outputs of the wrapped model through that."""

    def hook(model: Any) -> None:
        model.register_forward_hook(lambda module, inputs, outputs: drop(outputs))

    on_ddp(hook)


@fault
def dropout_left_on() -> None:
    """The wrapped model drops a tenth of its outputs, with a seed of each rank's own."""
    _with_noise(lambda outputs: torch.nn.functional.dropout(outputs, 0.1, training=True))


@fault
def dropout_with_one_seed() -> None:
    """The same with one seed on all ranks: all of them drop alike."""

    def drop(outputs: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(7)
        return torch.nn.functional.dropout(outputs, 0.1, training=True)

    _with_noise(drop)


# Gradients that stay, or are old.


def _keeps_gradients(is_its: Callable[[Any], bool]) -> None:
    zero: Any = torch.optim.Optimizer.zero_grad

    @wraps(zero)
    def kept(self: Any, *args: Any, **named: Any) -> Any:
        return None if is_guilty() and is_its(self) else zero(self, *args, **named)

    put(torch.optim.Optimizer, "zero_grad", kept)


@fault
def not_set_to_zero_on_one_rank() -> None:
    """One rank never calls zero_grad."""
    wrapped: set[int] = set()
    on_ddp(lambda model: wrapped.update(id(one) for one in model.parameters()))
    _keeps_gradients(lambda optimizer: id(parameters_of(optimizer)[0]) in wrapped)


@fault
def sharded_not_set_to_zero_on_one_rank() -> None:
    """The same under FSDP2."""
    _keeps_gradients(lambda optimizer: hasattr(parameters_of(optimizer)[0], "to_local"))


@fault
def one_rank_hands_in_old_gradients() -> None:
    """From some step on, one rank averages its gradients of the step before."""

    def make() -> Hook:
        kept: dict[int, torch.Tensor] = {}

        def hook(bucket: Bucket) -> Future[torch.Tensor]:
            parts = bucket.gradients()
            for parameter, part in zip(bucket.parameters(), parts, strict=True):
                old, kept[id(parameter)] = kept.get(id(parameter)), part.clone()
                if dist.get_rank() == GUILTY and old is not None:
                    part.copy_(old)
            return averaged(bucket.buffer())

        return hook

    with_hook(make)


@fault
def one_step_with_old_gradients() -> None:
    """One step uses the gradients of the step before, on one rank."""
    kept: dict[int, torch.Tensor] = {}

    def act(optimizer: Any, number: int, step: Callable[[], Any]) -> Any:
        now = {id(one): one.grad.clone() for one in parameters_of(optimizer) if one.grad is not None}
        if number == WHEN:
            for one in parameters_of(optimizer):
                one.grad.copy_(kept[id(one)])  # type: ignore[union-attr]
        kept.update(now)
        return step()

    on_steps(act, chosen=is_guilty)


@fault
def sharded_old_gradients_of_one_rank() -> None:
    """One rank's part of the averages is that of the step before, under FSDP2."""
    kept: list[list[torch.Tensor]] = []

    def act(shards: list[torch.Tensor]) -> None:
        if not is_guilty():
            return
        now = [shard.clone() for shard in shards]
        if kept and [one.shape for one in kept[0]] == [one.shape for one in now]:
            for shard, old in zip(shards, kept.pop(), strict=True):
                shard.copy_(old)
        kept[:] = [now]

    on_sharded_gradients(act)


# A little too much, and batches that are short.


@fault
def little_too_much() -> None:
    """Averages that are 0.1 % too large."""
    with_hook(lambda: lambda bucket: averaged(bucket.buffer(), dist.get_world_size() / 1.001))


@fault
def short_last_batch_of_one_rank() -> None:
    """One rank's last batch of an epoch is half as long."""
    counts = [0]

    def change(batch: list[Any]) -> list[Any]:
        counts[0] += 1
        return [part[: len(part) // 2] for part in batch] if counts[0] % 2 == 0 else batch

    on_batches(change, is_guilty)


@fault
def sampler_that_pads() -> None:
    """The data do not divide evenly: the sampler pads them with samples of another rank."""
    from torch.utils.data.distributed import DistributedSampler

    def pad(order: Any, self: Any) -> Any:
        indices = list(order)
        if self.rank == GUILTY:
            indices[-1] = min(set(range(len(self.dataset))) - set(indices))
        return iter(indices)

    after(DistributedSampler, "__iter__", pad)


# The same where every rank keeps its part.


def _on_sharded_steps(act: Act) -> None:
    """Call `act` at each step of FSDP2's optimizer on one rank."""
    on_steps_of(lambda optimizer: is_guilty() and hasattr(parameters_of(optimizer)[0], "to_local"), act)


@fault
def sharded_no_step_on_one_rank() -> None:
    """One rank leaves one step out."""
    _on_sharded_steps(left_out)


@fault
def sharded_decay_on_one_rank() -> None:
    """One rank's optimizer has a decay that nobody asked for."""
    _on_sharded_steps(with_settings(weight_decay=0.1))


@fault
def sharded_dropout_left_on() -> None:
    """The sharded model drops a tenth of its outputs."""
    import torch.distributed.fsdp as fsdp

    def drop(module: Any, inputs: Any, outputs: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(outputs, 0.1, training=True)

    def hook(_: Any, module: Any, *args: Any, **named: Any) -> None:
        if any(True for _ in module.children()):
            module.register_forward_hook(drop)

    after(fsdp, "fully_shard", hook)
