"""Mistakes as people report them of their training, planted in DDP and FSDP2, with the report."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.planted.importing import AfterImport
from benchmarks.planted.planting import (
    WHEN,
    Act,
    after,
    fault,
    is_guilty,
    left_out,
    on_ddp,
    on_sharded_gradients,
    on_steps,
    on_steps_of,
    on_what_is_handed_in,
    parameters_of,
    put,
    with_settings,
    without_momentum,
)

# Clipping.


def _norm_of(tensors: list[torch.Tensor]) -> torch.Tensor:
    whole: torch.Tensor = torch.stack([one.norm() for one in tensors]).norm()
    return whole


@fault
def sharded_clipped_by_own_norm() -> None:
    """Each rank clips its shards by the norm of these alone (github.com/sgl-project/SpecForge/pull/663)."""

    def act(shards: list[torch.Tensor]) -> None:
        size = float(_norm_of(shards))
        for shard in shards:
            shard.mul_(min(1.0, 0.01 / (size + 1e-6)))

    on_sharded_gradients(act)


@fault
def clipped_by_norms_of_all_ranks() -> None:
    """The norm of averaged gradients is summed once more (github.com/modelscope/twinkle/pull/290)."""

    def act(optimizer: Any, number: int, step: Callable[[], Any]) -> Any:
        gradients = [one.grad for one in parameters_of(optimizer) if one.grad is not None]
        squares = _norm_of(gradients).square()
        own = float(squares.sqrt())
        dist.all_reduce(squares)
        for one in gradients:
            one.mul_(own / float(squares.sqrt()))  # the threshold is the norm itself
        return step()

    on_steps(act)


@fault
def clipped_by_value() -> None:
    """clip_grad_value_ after the averaging."""

    def act(optimizer: Any, number: int, step: Callable[[], Any]) -> Any:
        parameters = parameters_of(optimizer)
        largest = max(float(one.grad.abs().max()) for one in parameters)  # type: ignore[union-attr]
        torch.nn.utils.clip_grad_value_(parameters, largest / 3)
        return step()

    on_steps(act)


# Averaging.


@fault
def forward_inside_no_sync() -> None:
    """Only the forward pass runs without synchronization (github.com/karpathy/build-nanogpt/pull/30)."""
    from torch.nn.parallel import DistributedDataParallel as Ddp

    call: Any = Ddp.forward

    @wraps(call)
    def forward(self: Any, *args: Any, **named: Any) -> Any:
        with self.no_sync():
            return call(self, *args, **named)

    put(Ddp, "forward", forward)


@fault
def float16_on_the_way() -> None:
    """Torch's fp16_compress_hook."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    on_ddp(lambda model: model.register_comm_hook(None, fp16_compress_hook))


@fault
def sharded_reduced_in_bfloat16() -> None:
    """FSDP2's policy reduces in bfloat16."""
    import torch.distributed.fsdp as fsdp

    shard: Any = fsdp.fully_shard

    @wraps(shard)
    def sharded(module: Any, *args: Any, **named: Any) -> Any:
        policy = fsdp.MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)
        return shard(module, *args, **{**named, "mp_policy": policy})

    put(fsdp, "fully_shard", sharded)


@fault
def sharded_without_synchronization() -> None:
    """set_requires_gradient_sync(False) is never taken back."""
    import torch.distributed.fsdp as fsdp

    def hook(_: Any, module: Any, *args: Any, **named: Any) -> None:
        module.set_requires_gradient_sync(False)

    after(fsdp, "fully_shard", hook)


@fault
def loss_added_up() -> None:
    """The loss is the sum over a rank's samples, not their mean (github.com/pytorch/pytorch/issues/37359)."""

    def act(optimizer: Any, number: int, step: Callable[[], Any]) -> Any:
        for one in parameters_of(optimizer):
            one.grad.mul_(8)  # type: ignore[union-attr]
        return step()

    on_steps(act)


# The optimizer.


@fault
def sharded_optimizer_after_forward() -> None:
    """The optimizer is made while the parameters are gathered (github.com/pytorch/pytorch/issues/149205)."""
    import torch.distributed.fsdp as fsdp

    roots: list[Any] = []
    after(fsdp, "fully_shard", lambda _, module, *args, **named: roots.append(module))
    init: Any = torch.optim.SGD.__init__

    @wraps(init)
    def made(self: Any, params: Any, *args: Any, **named: Any) -> None:
        params = list(params)
        if roots and any(hasattr(one, "to_local") for one in params):
            for module in roots:
                module.unshard()
            params = list(roots[-1].parameters())
            for module in roots:
                module.reshard()
            roots.clear()
        init(self, params, *args, **named)

    put(torch.optim.SGD, "__init__", made)


@fault
def momentum_lost_on_one_rank() -> None:
    """Not all ranks restore the optimizer's state (github.com/vllm-project/speculators/pull/926)."""
    on_steps(without_momentum, chosen=is_guilty)


@fault
def other_momentum() -> None:
    """The momentum of the configuration does not reach the optimizer."""
    on_steps(with_settings(momentum=0.5))


@fault
def rate_that_decays() -> None:
    """A scheduler steps once for each rank (github.com/huggingface/accelerate/issues/2142)."""

    def act(optimizer: Any, number: int, step: Callable[[], Any]) -> Any:
        for group in optimizer.param_groups:
            group["lr"] *= 0.9
        return step()

    on_steps(act)


@fault
def weights_replaced_after_the_optimizer() -> None:
    """load_state_dict(assign=True) after the optimizer was made (github.com/pytorch/tutorials/pull/2522)."""
    models: list[Any] = []
    on_ddp(models.append)
    init: Any = torch.optim.SGD.__init__

    @wraps(init)
    def made(self: Any, params: Any, *args: Any, **named: Any) -> None:
        init(self, params, *args, **named)
        if models:
            model = models.pop()
            model.load_state_dict(
                {name: one.clone() for name, one in model.state_dict().items()}, assign=True
            )

    put(torch.optim.SGD, "__init__", made)


# Parameters.


@fault
def frozen_on_one_rank() -> None:
    """One rank freezes a layer after the model was wrapped (github.com/pytorch/pytorch/issues/43259)."""

    def act(model: Any) -> None:
        if is_guilty():
            next(iter(model.parameters())).requires_grad_(False)

    on_ddp(act)


@fault
def weights_of_one_rank_reset() -> None:
    """One rank alone loads older weights (github.com/Hzfinfdu/Diffusion-BERT/issues/30)."""
    kept: list[torch.Tensor] = []

    def act(optimizer: Any, number: int, step: Callable[[], Any]) -> Any:
        result = step()
        with torch.no_grad():
            if number == 0 and not kept:
                kept.extend(one.clone() for one in parameters_of(optimizer))
            if number == WHEN and kept:
                for one, old in zip(parameters_of(optimizer), kept, strict=True):
                    one.copy_(old)
        return result

    on_steps(act, chosen=is_guilty)


@fault
def average_of_weights_written_back() -> None:
    """An average over the steps (EMA) is written into the weights that are trained."""
    kept: dict[int, torch.Tensor] = {}

    def act(optimizer: Any, number: int, step: Callable[[], Any]) -> Any:
        result = step()
        with torch.no_grad():
            for one in parameters_of(optimizer):
                old = kept.get(id(one), one.clone())
                old = old if old.shape == one.shape else one.clone()  # another model's, whose place it has
                kept[id(one)] = old.lerp(one, 0.5)
                one.copy_(kept[id(one)])
        return result

    on_steps(act)


# DeepSpeed's engine, which drives torch's optimizer with flat parts.


def _on_engine_steps(act: Act) -> None:
    """Call `act` at each step of the optimizer inside the engine, on one rank."""
    inside: set[int] = set()

    def remember(_: Any, *args: Any, **named: Any) -> None:
        inside.update(id(one) for one in (*args, *named.values()) if isinstance(one, torch.optim.Optimizer))

    def watch() -> None:
        from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
        from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

        for engine in (DeepSpeedZeroOptimizer, DeepSpeedZeroOptimizer_Stage3):
            after(engine, "__init__", remember)

    AfterImport("deepspeed", watch)
    on_steps_of(lambda optimizer: id(optimizer) in inside and is_guilty(), act)


@fault
def zero_other_rate_on_one_rank() -> None:
    """One rank's optimizer has another learning rate."""
    _on_engine_steps(with_settings(lr=0.1))


@fault
def zero_momentum_lost_on_one_rank() -> None:
    """One rank's part of the state is lost."""
    _on_engine_steps(without_momentum)


@fault
def zero_no_step_on_one_rank() -> None:
    """One rank leaves one step out."""
    _on_engine_steps(left_out)


@fault
def zero_counts_one_rank_more() -> None:
    """One rank hands in 1.1 times its gradients."""

    def act(tensor: torch.Tensor) -> None:
        if is_guilty():
            tensor.mul_(1.1)

    on_what_is_handed_in(act)
