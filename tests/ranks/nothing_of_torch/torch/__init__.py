"""In place of torch, for ranks that never meet: every name is there, does nothing, and the meeting has no
end.

Importing the real one four times is two thirds of what such a run takes.
"""

import sys
import time
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn


class _Name:
    """Whatever is asked of it, as a class, a value, a decorator or a part of an annotation."""

    def __getattr__(self, name: str) -> "_Name":
        if name.startswith("__"):
            raise AttributeError(name)
        return _Name()

    def __call__(self, *_: Any, **__: Any) -> "_Name":
        return _Name()

    def __or__(self, _: object) -> "_Name":
        return self

    __ror__ = __or__

    def __mro_entries__(self, _: tuple[object, ...]) -> tuple[type, ...]:
        return ()


def _wait(*_: Any, **__: Any) -> NoReturn:
    while True:
        time.sleep(60)


def _module(name: str, **names: Any) -> ModuleType:
    module = sys.modules[name] if name == "torch" else ModuleType(name)
    module.__dict__.update(names, __path__=[], __getattr__=lambda _: _Name())
    sys.modules[name] = module
    return module


_rendezvous = _module("torch.distributed.rendezvous", rendezvous=_wait)
_distributed = _module("torch.distributed", rendezvous=_rendezvous)
_module("torch", __version__="2.13.0", version=SimpleNamespace(cuda=None), distributed=_distributed)
