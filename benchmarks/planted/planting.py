"""How a fault is planted in torch, for the model that a strategy wrapped.

See sitecustomize.py for how the faults come into the interpreter of every rank, and
../train_outside_faults.py for what must be reported for each.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch.futures import Future

PLANTS: dict[str, Callable[[], None]] = {}
GUILTY = 1  # the rank that is faulty, where one is
WHEN = 2  # the step, where it is one of several
_LEAST_ELEMENTS = 8  # of gradients; what is shorter is a norm or a flag
Bucket = Any
Hook = Callable[[Bucket], Future[torch.Tensor]]
# Of an optimizer, the number of the step, and the step itself.
Act = Callable[[Any, int, Callable[[], Any]], Any]


def plant(name: str) -> None:
    """Plant that fault in this process."""
    PLANTS[name]()


def fault(function: Callable[[], None]) -> Callable[[], None]:
    """Count the function among the faults, by its name."""
    PLANTS[function.__name__] = function
    return function


def is_guilty() -> bool:
    """Whether this process is the faulty rank."""
    return dist.is_initialized() and dist.get_rank() == GUILTY


def flip(tensor: torch.Tensor, place: int = 3, bit: int = 27) -> None:
    """Flip one bit of one element, by default a high one of the exponent."""
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    local.view(torch.int32).view(-1)[place % local.numel()] ^= 1 << bit


def put(owner: Any, name: str, value: Any) -> None:
    """Put something in the place of a library's own."""
    setattr(owner, name, value)


def after(owner: Any, name: str, act: Callable[..., Any]) -> None:
    """Call `act` with the result and the arguments of a function, each time that it was called."""
    call: Any = getattr(owner, name)

    @wraps(call)
    def called(*args: Any, **named: Any) -> Any:
        result = call(*args, **named)
        changed = act(result, *args, **named)
        return result if changed is None else changed

    setattr(owner, name, called)


def on_ddp(act: Callable[[Any], None]) -> None:
    """Do that to every model that DDP wraps."""
    from torch.nn.parallel import DistributedDataParallel

    after(DistributedDataParallel, "__init__", lambda _, model, *args, **named: act(model))


def with_hook(make: Callable[[], Hook]) -> None:
    """Average the gradients of DDP by such a function of a bucket."""

    def register(model: Any) -> None:
        hook = make()
        model.register_comm_hook(None, lambda state, bucket: hook(bucket))

    on_ddp(register)


def summed(tensor: torch.Tensor, group: Any = None) -> Future[torch.Tensor]:
    """The sum over the ranks, in place."""
    work: Any = dist.all_reduce(tensor, group=group, async_op=True)
    reduced: Future[torch.Tensor] = work.get_future().then(lambda done: done.value()[0])
    return reduced


def averaged(tensor: torch.Tensor, by: float | None = None) -> Future[torch.Tensor]:
    """The sum over the ranks, divided by their number, or by another."""
    return summed(tensor.div_(by or dist.get_world_size()))


def weighed(weight: Callable[[int, torch.Tensor], float], by: Callable[[int], float] | None = None) -> None:
    """Average after each rank has multiplied its own gradients by a weight of its own."""

    def hook(bucket: Bucket) -> Future[torch.Tensor]:
        own = bucket.buffer()
        own.mul_(weight(dist.get_rank(), own))
        return averaged(own, by(dist.get_world_size()) if by else None)

    with_hook(lambda: hook)


def on_steps(act: Act, *, chosen: Callable[[], bool] = lambda: True) -> None:
    """Call `act` with the optimizer, the number of the step and the step, for the wrapped model."""
    wrapped: set[int] = set()
    on_ddp(lambda model: wrapped.update(id(parameter) for parameter in model.parameters()))
    on_steps_of(lambda optimizer: id(optimizer.param_groups[0]["params"][0]) in wrapped and chosen(), act)


def on_steps_of(is_its: Callable[[Any], bool], act: Act) -> None:
    """Call `act` at each step of the optimizers that are meant."""
    counts: dict[int, int] = {}
    call: Any = torch.optim.SGD.step

    @wraps(call)
    def step(self: Any, closure: Any = None) -> Any:
        if not is_its(self):
            return call(self, closure)
        number = counts.get(id(self), 0)
        counts[id(self)] = number + 1
        return act(self, number, lambda: call(self, closure))

    put(torch.optim.SGD, "step", step)


def with_settings(**settings: float) -> Act:
    """Steps of an optimizer with other settings."""

    def act(optimizer: Any, number: int, step: Callable[[], Any]) -> Any:
        for group in optimizer.param_groups:
            group.update(settings)
        return step()

    return act


def without_momentum(optimizer: Any, number: int, step: Callable[[], Any]) -> Any:
    """A step before which the optimizer forgets its state, at one of them."""
    if number == WHEN:
        optimizer.state.clear()
    return step()


def left_out(optimizer: Any, number: int, step: Callable[[], Any]) -> Any:
    """The step, but for one of them."""
    return None if number == WHEN else step()


def on_sharded_gradients(act: Callable[[list[torch.Tensor]], None]) -> None:
    """Do that to a rank's part of FSDP2's averaged gradients, after each backward pass."""
    import torch.distributed.fsdp as fsdp

    backward: Any = torch.Tensor.backward
    sharded: list[Any] = []
    after(fsdp, "fully_shard", lambda _, module, *args, **named: sharded.append(module))

    @wraps(backward)
    def spoilt(self: Any, *args: Any, **named: Any) -> Any:
        result = backward(self, *args, **named)
        gradients = [one.grad for one in sharded[-1].parameters()] if sharded else []
        if gradients and all(hasattr(one, "to_local") for one in gradients):
            act([one.to_local() for one in gradients])
        return result

    put(torch.Tensor, "backward", spoilt)


def on_what_is_handed_in(act: Callable[[torch.Tensor], None]) -> None:
    """Do that to what a rank hands in to be added up, under FSDP2 and DeepSpeed."""
    for name in ("reduce_scatter_tensor", "reduce_scatter_single", "all_reduce", "reduce"):  # of torch 2.13
        _before_adding_up(name, 1 if "scatter" in name else 0, act)


def _before_adding_up(name: str, place: int, act: Callable[[torch.Tensor], None]) -> None:
    call: Any = getattr(dist, name)

    @wraps(call)
    def spoilt(*args: Any, **named: Any) -> Any:
        tensor = args[place] if len(args) > place else named["input" if place else "tensor"]
        if tensor.is_floating_point() and tensor.numel() >= _LEAST_ELEMENTS:
            act(tensor)
        return call(*args, **named)

    put(dist, name, spoilt)


def on_batches(change: Callable[[list[Any]], list[Any]], chosen: Callable[[], bool]) -> None:
    """Change the batches of torch's data loader: a list of tensors each."""
    from torch.utils.data import dataloader

    def changed(batch: Any, *args: Any) -> Any:
        return change(list(batch)) if chosen() else None

    after(dataloader._SingleProcessDataLoaderIter, "_next_data", changed)


def parameters_of(optimizer: Any) -> list[torch.Tensor]:
    """All its parameters, in order."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
