"""Faults in the numbers of gradients: corrupt on one rank, or divided and added up otherwise."""

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.futures import Future

from benchmarks.planted.importing import AfterImport
from benchmarks.planted.planting import (
    GUILTY,
    WHEN,
    Bucket,
    after,
    averaged,
    fault,
    flip,
    is_guilty,
    on_ddp,
    on_sharded_gradients,
    on_steps,
    on_what_is_handed_in,
    parameters_of,
    summed,
    weighed,
    with_hook,
)

# What is corrupt on one rank.


@fault
def bit_of_average() -> None:
    """One bit of the averaged gradient, on one rank."""
    calls = [0]

    def hook(bucket: Bucket) -> Future[torch.Tensor]:
        calls[0] += 1

        def spoil(done: Any) -> torch.Tensor:
            result: torch.Tensor = done.value()
            if is_guilty() and calls[0] > WHEN:
                flip(result)
            return result

        return averaged(bucket.buffer()).then(spoil)

    with_hook(lambda: hook)


@fault
def bit_of_own_gradient() -> None:
    """One bit of what one rank's backward pass computes, before it is averaged."""

    def watch(model: Any) -> None:
        def spoil(gradient: torch.Tensor) -> torch.Tensor:
            gradient = gradient.clone()
            if is_guilty():
                flip(gradient)
            return gradient

        first: Any = next(iter(model.parameters()))
        first.register_hook(spoil)

    on_ddp(watch)


@fault
def bit_on_the_way() -> None:
    """One bit of what one rank hands in to be averaged."""

    def hook(bucket: Bucket) -> Future[torch.Tensor]:
        if is_guilty():
            flip(bucket.buffer())
        return averaged(bucket.buffer())

    with_hook(lambda: hook)


@fault
def bit_of_parameter() -> None:
    """One bit of a parameter, after a step of one rank."""

    def act(optimizer: Any, number: int, step: Callable[[], Any]) -> Any:
        result = step()
        if number == WHEN:
            flip(parameters_of(optimizer)[0].data)
        return result

    on_steps(act, chosen=is_guilty)


@fault
def bits_of_sharded_gradient() -> None:
    """One bit of the shard of the averaged gradient that one rank has, under FSDP2."""

    def spoil(shards: list[torch.Tensor]) -> None:
        if is_guilty():
            flip(shards[0])

    on_sharded_gradients(spoil)


@fault
def bit_of_own_gradient_before_shards() -> None:
    """One bit of what one rank's backward pass computes, under FSDP2."""
    import torch.distributed.fsdp as fsdp

    def spoil(gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient.clone()
        flip(gradient)
        return gradient

    def watch(module: Any, _: Any) -> None:
        if is_guilty() and torch.is_grad_enabled():
            for parameter in list(module.parameters(recurse=False))[:1]:
                parameter.register_hook(spoil)

    spoilt: list[Any] = []

    def choose(_: Any, module: Any, *args: Any, **named: Any) -> None:
        if not spoilt:
            spoilt.append(module.register_forward_pre_hook(watch))

    after(fsdp, "fully_shard", choose)


@fault
def bit_handed_in_for_shards() -> None:
    """One bit of what one rank hands in to be averaged, in the part that rank 0 keeps, under FSDP2."""
    on_what_is_handed_in(lambda tensor: flip(tensor) if is_guilty() else None)


@fault
def number_handed_in_for_shards() -> None:
    """One element of it becomes another number, which is no flipped bit."""

    def spoil(tensor: torch.Tensor) -> None:
        if is_guilty():
            tensor.view(-1)[3] += 0.0123

    on_what_is_handed_in(spoil)


@fault
def bit_handed_in_to_zero() -> None:
    """One bit of what one rank hands in to DeepSpeed's averaging, once."""
    spoilt: list[bool] = []

    def spoil(tensor: torch.Tensor) -> None:
        if is_guilty() and not spoilt:
            spoilt.append(True)
            flip(tensor)

    on_what_is_handed_in(spoil)


@fault
def bit_of_own_gradient_before_zero() -> None:
    """One bit of what one rank's backward pass computes, under DeepSpeed."""

    def spoil(gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient.clone()
        if is_guilty():
            flip(gradient)
        return gradient

    def watch() -> None:
        deepspeed: Any = sys.modules["deepspeed"]

        def act(_: Any, *args: Any, model: Any, **named: Any) -> None:
            next(iter(model.parameters())).register_hook(spoil)

        after(deepspeed, "initialize", act)

    AfterImport("deepspeed", watch)


@fault
def buffer_of_one_rank() -> None:
    """A buffer that one rank alone changes."""

    def act(optimizer: Any, number: int, step: Callable[[], Any]) -> Any:
        if number == WHEN:
            models[0].module[0].shift.add_(0.5)
        return step()

    models: list[Any] = []
    on_ddp(models.append)
    on_ddp(lambda model: setattr(model, "broadcast_buffers", False))
    on_steps(act, chosen=is_guilty)


@fault
def nan_of_own_gradient() -> None:
    """A gradient that is no number, on one rank before it is averaged."""

    def watch(model: Any) -> None:
        def spoil(gradient: torch.Tensor) -> torch.Tensor:
            return gradient * float("nan") if is_guilty() else gradient

        first: Any = next(iter(model.parameters()))
        first.register_hook(spoil)

    on_ddp(watch)


# What divides, or adds up, by another number.


@fault
def never_divided() -> None:
    """The sum for the average."""
    with_hook(lambda: lambda bucket: summed(bucket.buffer()))


@fault
def divided_twice() -> None:
    """The average divided by the number of ranks again."""
    with_hook(lambda: lambda bucket: averaged(bucket.buffer(), float(dist.get_world_size() ** 2)))


@fault
def divided_by_others() -> None:
    """The sum divided by the number of the other ranks."""
    with_hook(lambda: lambda bucket: averaged(bucket.buffer(), max(1.0, dist.get_world_size() - 1.0)))


@fault
def five_passes_added() -> None:
    """Five times the average, as five passes that are accumulated and not divided give."""
    with_hook(lambda: lambda bucket: averaged(bucket.buffer(), dist.get_world_size() / 5))


@fault
def fifth_of_the_average() -> None:
    """A fifth, as a division by steps of accumulation that nobody takes."""
    with_hook(lambda: lambda bucket: averaged(bucket.buffer(), dist.get_world_size() * 5.0))


@fault
def clipped_before_averaging() -> None:
    """Each rank clips its own gradients."""
    weighed(lambda rank, own: min(1.0, 0.05 * (1 + rank) / float(own.norm())))


@fault
def clipped_after_averaging() -> None:
    """The average clipped to a norm that it is above of."""

    def hook(bucket: Bucket) -> Future[torch.Tensor]:
        def clip(done: Any) -> torch.Tensor:
            result: torch.Tensor = done.value()
            return result * min(1.0, 0.123 / float(result.norm()))

        return averaged(bucket.buffer()).then(clip)

    with_hook(lambda: hook)


@fault
def one_rank_counts_more() -> None:
    """One rank's gradients times 1.1."""
    weighed(lambda rank, own: 1.1 if rank == GUILTY else 1.0)


@fault
def one_rank_counts_less() -> None:
    """One rank's gradients times 0.8."""
    weighed(lambda rank, own: 0.8 if rank == GUILTY else 1.0)


@fault
def one_rank_negative() -> None:
    """One rank's gradients with the other sign."""
    weighed(lambda rank, own: -1.0 if rank == GUILTY else 1.0)


@fault
def one_rank_left_out() -> None:
    """One rank hands in nothing."""
    weighed(lambda rank, own: 0.0 if rank == GUILTY else 1.0)


@fault
def one_rank_not_counted() -> None:
    """One rank hands in nothing, and is not counted."""
    weighed(lambda rank, own: 0.0 if rank == GUILTY else 1.0, lambda size: max(1.0, size - 1.0))


@fault
def gradients_of_rank_0() -> None:
    """Everybody gets rank 0's gradients."""
    weighed(lambda rank, own: 0.0 if rank else 1.0, lambda size: 1.0)


@fault
def one_tensor_left_out_on_one_rank() -> None:
    """One rank's gradient of one tensor is nothing before it is averaged."""

    def watch(model: Any) -> None:
        def hook(state: object, bucket: Bucket) -> Future[torch.Tensor]:
            if is_guilty():
                for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
                    if parameter is first:
                        gradient.zero_()
            return averaged(bucket.buffer())

        first = next(iter(model.parameters()))
        model.register_comm_hook(None, lambda state, bucket: hook(state, bucket))

    on_ddp(watch)
