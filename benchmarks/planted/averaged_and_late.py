"""Faults in the averaging of gradients: over others, not at all, or too late."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch.futures import Future

from benchmarks.planted.planting import (
    WHEN,
    Bucket,
    Hook,
    averaged,
    fault,
    is_guilty,
    on_ddp,
    on_steps,
    parameters_of,
    put,
    summed,
    with_hook,
)

# What averages over others, or not at all.


@fault
def pairs() -> None:
    """Averages within pairs of ranks."""
    groups: list[Any] = []

    def hook(bucket: Bucket) -> Future[torch.Tensor]:
        group = groups[dist.get_rank() // 2]
        return summed(bucket.buffer().div_(dist.get_world_size(group)), group)

    def make() -> Hook:
        size = dist.get_world_size()
        groups[:] = [dist.new_group(list(range(first, min(first + 2, size)))) for first in range(0, size, 2)]
        return hook

    with_hook(make)


@fault
def own_gradients_of_one_rank() -> None:
    """One rank takes part in the averaging, and goes on with its own gradients, from some step on."""
    calls = [0]

    def hook(bucket: Bucket) -> Future[torch.Tensor]:
        calls[0] += bucket.index() == 0  # a step has several buckets
        own = bucket.buffer().clone()
        late = calls[0] > WHEN and is_guilty()
        return averaged(bucket.buffer()).then(lambda done: own if late else done.value())

    with_hook(lambda: hook)


@fault
def inner_model_called() -> None:
    """The model inside the wrapper is called."""
    from torch.nn.parallel import DistributedDataParallel

    put(DistributedDataParallel, "forward", lambda self, *args, **named: self.module(*args, **named))


@fault
def one_step_without_averaging() -> None:
    """no_sync() around one step."""
    from torch.nn.parallel import DistributedDataParallel

    calls: dict[int, int] = {}
    call: Any = DistributedDataParallel.forward

    @wraps(call)
    def forward(self: Any, *args: Any, **named: Any) -> Any:
        calls[id(self)] = calls.get(id(self), 0) + 1
        self.require_backward_grad_sync = calls[id(self)] != WHEN + 1
        return call(self, *args, **named)

    put(DistributedDataParallel, "forward", forward)


@fault
def one_tensor_not_averaged() -> None:
    """One tensor that DDP is set to ignore."""
    from torch.nn.parallel import DistributedDataParallel

    call: Any = DistributedDataParallel.__init__
    ignore: Any = DistributedDataParallel._set_params_and_buffers_to_ignore_for_model

    @wraps(call)
    def init(self: Any, module: Any, *args: Any, **named: Any) -> None:
        name = next(name for name, _ in module.named_parameters() if name.endswith("bias"))
        ignore(module, [name])
        call(self, module, *args, **named)
        for one, parameter in module.named_parameters():
            if one == name:
                dist.broadcast(parameter.detach(), 0)

    put(DistributedDataParallel, "__init__", init)


@fault
def second_bucket_not_averaged() -> None:
    """Only the first bucket of DDP is averaged."""

    def hook(bucket: Bucket) -> Future[torch.Tensor]:
        if bucket.index() > 0:
            own: Future[torch.Tensor] = Future()
            own.set_result(bucket.buffer())
            return own
        return averaged(bucket.buffer())

    with_hook(lambda: hook)


@fault
def rounded_on_the_way() -> None:
    """Gradients that travel as bfloat16."""

    def hook(bucket: Bucket) -> Future[torch.Tensor]:
        rounded = bucket.buffer().bfloat16().float()
        return averaged(rounded).then(lambda done: done.value().bfloat16().float())

    with_hook(lambda: hook)


# What comes too late, or stays.


@fault
def late_averages() -> None:
    """Every backward pass hands over the averages of the one before."""

    def make() -> Hook:
        kept: dict[int, torch.Tensor] = {}

        def hook(bucket: Bucket) -> Future[torch.Tensor]:
            places = [id(parameter) for parameter in bucket.parameters()]

            def swap(done: Any) -> torch.Tensor:
                result: torch.Tensor = done.value()
                old = result.clone()
                for place, part, target in zip(
                    places, split(result, bucket), split(old, bucket), strict=True
                ):
                    target.copy_(kept.get(place, torch.zeros_like(part)))
                    kept[place] = part.clone()
                return old

            return averaged(bucket.buffer()).then(swap)

        return hook

    def split(buffer: torch.Tensor, bucket: Bucket) -> list[torch.Tensor]:
        sizes = [parameter.numel() for parameter in bucket.parameters()]
        return list(torch.split(buffer, sizes))

    with_hook(make)


@fault
def late_steps() -> None:
    """Every step uses the gradients of the one before."""
    kept: dict[int, torch.Tensor] = {}

    def act(optimizer: Any, number: int, step: Callable[[], Any]) -> Any:
        if number == 0:  # another model may have the identities of the last one
            kept.clear()
        now = [one.grad.clone() for one in parameters_of(optimizer) if one.grad is not None]
        for one in parameters_of(optimizer):
            if one.grad is not None:
                one.grad.copy_(kept.get(id(one), torch.zeros_like(one)))
        result = step()
        for one, gradient in zip(parameters_of(optimizer), now, strict=True):
            kept[id(one)] = gradient
        return result

    on_steps(act)


@fault
def never_set_to_zero() -> None:
    """Nobody forgets the gradients of the last step."""
    wrapped: set[int] = set()
    on_ddp(lambda model: wrapped.update(id(one) for one in model.parameters()))
    call: Any = torch.optim.Optimizer.zero_grad

    @wraps(call)
    def zero_grad(self: Any, set_to_none: bool = True) -> None:
        if id(self.param_groups[0]["params"][0]) not in wrapped:
            call(self, set_to_none)

    put(torch.optim.Optimizer, "zero_grad", zero_grad)
