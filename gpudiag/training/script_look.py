"""What a user's script shows of its training: parameters after some steps, samples, losses, collectives."""

import itertools
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import wraps
from hashlib import sha256
from typing import Any

from gpudiag.model.codec import encode
from gpudiag.model.script import ScriptFacts
from gpudiag.ranks.rank.context import Progress

# A look reads every parameter: the first steps show permanent faults, later ones faults that come up.
_LOOKS = frozenset((1, 2, 3, 10, 30, *(10**power for power in range(2, 9))))
_SAMPLES = 1024
_KEPT_BITS = 2**32 - 1
_ENOUGH_COLLECTIVES = 100
_SUMS_WATCHED_STEPS = 3
# Collectives by which a gradient or a parameter can reach another rank.
_COLLECTIVES = (
    *("all_reduce", "reduce", "broadcast", "all_gather", "all_gather_into_tensor", "reduce_scatter"),
    *("reduce_scatter_tensor", "all_to_all", "all_to_all_single", "all_reduce_coalesced", "send", "recv"),
    *("isend", "irecv", "batch_isend_irecv"),
)


@dataclass
class ScriptLook:
    """Observes the script by hooks that do not change what it does, and emits what it has seen so far."""

    progress: Progress
    torch: Any
    facts: ScriptFacts = field(default_factory=ScriptFacts)
    _steps: dict[int, int] = field(default_factory=dict)  # by optimizer, in the order of their first step
    _optimizers: "weakref.WeakSet[Any]" = field(default_factory=weakref.WeakSet)
    _loader: Any = None  # the iterator that gave the last batch, and the batch
    _iterators: "weakref.WeakSet[Any]" = field(default_factory=weakref.WeakSet)  # those seen already
    _orders: dict[int, set[int]] = field(default_factory=dict)  # the epochs in which each sampler was read
    _sums: dict[int, float] = field(default_factory=dict)  # norms of tensors summed over ranks, by address
    _first_epoch: "weakref.ref[Any] | None" = None  # its iterator
    _samples: list[int] = field(default_factory=list)
    _since_backward: bool = False
    _backwards: int = 0
    _unsynchronized: bool = False  # whether the last forward pass of DDP was inside no_sync()

    def begin(self) -> None:
        """Install the hooks."""
        from torch.optim.optimizer import (
            register_optimizer_step_post_hook,
            register_optimizer_step_pre_hook,
        )

        torch = self.torch
        register_optimizer_step_pre_hook(_silent(self._before_step))
        register_optimizer_step_post_hook(_silent(self._after_step))
        _before(
            torch.optim.Optimizer, "__init__", lambda optimizer, *_, **__: self._optimizers.add(optimizer)
        )
        _before(torch.autograd, "backward", self._at_backward)
        loader = torch.utils.data.dataloader._BaseDataLoaderIter
        _after(loader, "__next__", self._at_batch)
        wrapper = torch.nn.parallel.DistributedDataParallel
        _before(wrapper, "__init__", lambda *_, **__: self._note(wrapped=self.facts.wrapped + 1))
        _before(wrapper, "forward", self._at_forward)
        for name in _COLLECTIVES:
            for module in (torch.distributed, torch.distributed.distributed_c10d):
                if hasattr(module, name):
                    _after(module, name, self._at_collective(name))

    def emit(self) -> None:
        """Emit what was seen so far."""
        self.progress.emit({"kind": "looked", **encode(self.facts)})

    def _note(self, **values: Any) -> None:
        self.facts = replace(self.facts, **values)

    def _at_forward(self, model: Any, *_: Any, **__: Any) -> None:
        if model.training and self.torch.is_grad_enabled():
            self._note(forwards=self.facts.forwards + 1)
            self._unsynchronized = not getattr(model, "require_backward_grad_sync", True)

    def _at_batch(self, batch: Any, iterator: Any, *_: Any, **__: Any) -> None:
        self._loader = (iterator, batch)

    def _at_backward(self, tensors: Any, *_: Any, **__: Any) -> None:
        self._backwards += 1
        self._since_backward = True
        self._check_sums("parameters")
        loader, self._loader = self._loader, None
        if loader is not None:  # the one that feeds the training, not an evaluation
            self._note_data(*loader)
        if self._backwards in _LOOKS or not self._uses_gpu(tensors):
            losses = [tensors] if isinstance(tensors, self.torch.Tensor) else list(tensors)
            finite = all(bool(self.torch.isfinite(loss.detach()).all()) for loss in losses)
            if not finite and self.facts.not_finite_backward is None:
                self._note(not_finite_backward=self._backwards)
                self.emit()
        self._note(backwards=self._backwards)

    def _uses_gpu(self, tensors: Any) -> bool:
        """Whether a look at a loss would wait for a GPU."""
        first = tensors if isinstance(tensors, self.torch.Tensor) else next(iter(tensors))
        return bool(first.device.type != "cpu")

    def _note_data(self, iterator: Any, batch: Any) -> None:
        from torch.utils.data import RandomSampler, SequentialSampler
        from torch.utils.data.distributed import DistributedSampler

        sampler = iterator._index_sampler
        sampler = getattr(sampler, "sampler", sampler)
        if isinstance(sampler, DistributedSampler):
            self._note(sampler="distributed", share=(int(sampler.rank), int(sampler.num_replicas)))
            self._note_order(sampler, iterator)
        elif isinstance(sampler, RandomSampler | SequentialSampler):
            self._note(sampler="whole")
        else:
            self._note(sampler="other")
        first = self._first_epoch() if self._first_epoch is not None else None
        if self._first_epoch is None:
            first, self._first_epoch = iterator, weakref.ref(iterator)
        if iterator is first and len(self._samples) < _SAMPLES:  # a later epoch has the same ones again
            rows = _rows_of(batch, self.torch)
            self._samples += [row & _KEPT_BITS for row in rows][: _SAMPLES - len(self._samples)]
            self._note(samples=tuple(self._samples))

    def _note_order(self, sampler: Any, iterator: Any) -> None:
        """Count the epochs of a shuffling sampler, and those that repeat the order of an earlier one."""
        if not sampler.shuffle or iterator in self._iterators:
            return
        self._iterators.add(iterator)
        orders = self._orders.setdefault(id(sampler), set())
        repeats = int(sampler.epoch) in orders
        orders.add(int(sampler.epoch))
        self._note(epochs=self.facts.epochs + 1, repeated_epochs=self.facts.repeated_epochs + repeats)

    def _at_collective(self, name: str) -> Callable[..., None]:
        def note(_: Any, *arguments: Any, **named: Any) -> None:
            early = max(self._steps.values(), default=0) < _SUMS_WATCHED_STEPS
            if not early and self.facts.crossed > _ENOUGH_COLLECTIVES:
                return
            tensors = [one for one in (*arguments, *named.values()) if isinstance(one, self.torch.Tensor)]
            known = self._addresses()
            if self._since_backward and any(one.numel() > 1 or one.data_ptr() in known for one in tensors):
                self._note(crossed=self.facts.crossed + 1)
            if name == "all_reduce" and tensors and early and _adds_up(arguments, named):
                self._sums[tensors[0].data_ptr()] = float(tensors[0].detach().double().norm())

        return note

    def _addresses(self) -> dict[int, str]:
        """The kind, parameters or gradients, at each of their addresses."""
        found = {}
        for parameter in self._parameters():
            found[parameter.data_ptr()] = "parameters"
            if parameter.grad is not None:
                found[parameter.grad.data_ptr()] = "gradients"
        return found

    def _parameters(self) -> Iterable[Any]:
        groups = itertools.chain.from_iterable(one.param_groups for one in list(self._optimizers))
        return (parameter for group in groups for parameter in group["params"])

    def _check_sums(self, kind: str) -> None:
        """Note that tensors of that kind were summed over the ranks and never divided."""
        if not self._sums:
            return
        known, left = self._addresses(), []
        tensors = {one.data_ptr(): one for one in self._parameters()}
        tensors |= {one.grad.data_ptr(): one.grad for one in self._parameters() if one.grad is not None}
        for place, size in list(self._sums.items()):
            if known.get(place) == kind:
                del self._sums[place]
                left.append(size > 0 and float(tensors[place].detach().double().norm()) > 0.99 * size)
        if left and all(left):
            self._note(summed=kind)

    def _before_step(self, optimizer: Any, *_: Any, **__: Any) -> None:
        self._check_sums("gradients")
        if id(optimizer) in self._steps:
            return
        from gpudiag.training.reference import SETTINGS

        words = (
            f"{name} {group[name]}" for group in optimizer.param_groups for name in SETTINGS if name in group
        )
        self._note(settings=(*self.facts.settings, *dict.fromkeys(words)))
        self._steps[id(optimizer)] = 0
        self._look_at_parameters(optimizer, 0)

    def _after_step(self, optimizer: Any, *_: Any, **__: Any) -> None:
        self._since_backward = False
        step = self._steps[id(optimizer)] = self._steps.get(id(optimizer), 0) + 1
        self._note(steps=max(self._steps.values()))
        if self._unsynchronized:
            self._note(unsynchronized=self.facts.unsynchronized + 1)
        if step not in _LOOKS:
            return
        self._look_at_parameters(optimizer, step)
        self.emit()

    def _look_at_parameters(self, optimizer: Any, step: int) -> None:
        """Note the digest of what an optimizer steps, after that step; before the first one, of step 0."""
        order = list(self._steps).index(id(optimizer))
        tensors = [one.detach() for group in optimizer.param_groups for one in group["params"]]
        if any(hasattr(one, "to_local") for one in tensors) or "deepspeed" in sys.modules:
            self._note(sharded=True)
            return
        from gpudiag.training.tensors import digest

        shapes = ",".join("x".join(map(str, one.shape)) for one in tensors)
        bits = sha256(",".join(digest(one) for one in tensors).encode()).hexdigest()[:16]
        looks = (*self.facts.parameters, (f"{order}.{step}", step, shapes, bits))
        self._note(parameters=looks, crossed=self.facts.crossed + ("horovod.torch" in sys.modules))


def _adds_up(arguments: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """Whether an all_reduce call summed, and has completed."""
    operation = named.get("op", arguments[1] if len(arguments) > 1 else "SUM")
    return "SUM" in str(operation) and not named.get("async_op")


def _rows_of(batch: Any, torch: Any) -> list[int]:
    """A number for each sample of a batch, from the bits of its first tensor."""
    from gpudiag.training.tensors import row_digests

    parts = (
        batch.values() if isinstance(batch, dict) else batch if isinstance(batch, list | tuple) else [batch]
    )
    tensors = [one for one in parts if isinstance(one, torch.Tensor) and one.dim() > 0]
    return row_digests(tensors[0]) if tensors else []


def _silent(call: Callable[..., Any]) -> Callable[..., None]:
    """The call with its exceptions suppressed: a look that fails must not disturb the script."""

    def quiet(*arguments: Any, **named: Any) -> None:
        with suppress(Exception):
            call(*arguments, **named)

    return quiet


def _before(owner: Any, name: str, look: Callable[..., Any]) -> None:
    call, quiet = getattr(owner, name), _silent(look)

    @wraps(call)
    def looked(*arguments: Any, **named: Any) -> Any:
        quiet(*arguments, **named)
        return call(*arguments, **named)

    setattr(owner, name, looked)


def _after(owner: Any, name: str, look: Callable[..., Any]) -> None:
    call, quiet = getattr(owner, name), _silent(look)

    @wraps(call)
    def looked(*arguments: Any, **named: Any) -> Any:
        result = call(*arguments, **named)
        quiet(result, *arguments, **named)
        return result

    setattr(owner, name, looked)
