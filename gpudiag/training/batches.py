"""How many batches a rank has had and how many backward passes it began: what tells the short one apart."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any


@dataclass(slots=True)
class BatchCount:
    """Counts since the script began; 0 where the script goes without torch's loader or autograd."""

    batches: int = 0
    backwards: int = 0

    def watch(self) -> None:
        """Count from now on, where torch is there."""
        loader: Any = sys.modules.get("torch.utils.data.dataloader")
        if loader is not None and hasattr(loader, "_BaseDataLoaderIter"):
            iterator = loader._BaseDataLoaderIter
            iterator.__next__ = self._count_batches(iterator.__next__)
        autograd: Any = sys.modules.get("torch.autograd")
        if autograd is not None and hasattr(autograd, "backward"):
            autograd.backward = self._count_backwards(autograd.backward)

    def _count_batches(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def take_next(*args: Any, **named: Any) -> Any:
            batch = call(*args, **named)
            self.batches += 1
            return batch

        return take_next

    def _count_backwards(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def run_backward(*args: Any, **named: Any) -> Any:
            self.backwards += 1
            return call(*args, **named)

        return run_backward
