"""A torch whose forks have no CUDA, because its import asked for devices; there is no more of it."""

import os
import sys
from types import ModuleType, SimpleNamespace

_IMPORTED_IN = os.getpid()

_torch = ModuleType("torch")
_torch.__version__ = "0.0"  # type: ignore[attr-defined]
_torch.version = SimpleNamespace(cuda=None)  # type: ignore[attr-defined]
_torch.cuda = SimpleNamespace(  # type: ignore[attr-defined]
    _is_in_bad_fork=lambda: os.getpid() != _IMPORTED_IN, is_initialized=lambda: False
)
sys.modules["torch"] = _torch
