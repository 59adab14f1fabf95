"""Import hooks: the extension before torch, the missing parts of torch._C before torch.cuda, small sizes in
gpudiag.
"""

import atexit
import ctypes
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType, ModuleType
from typing import Any

from tests.cuda_stand_in import bindings
from tests.cuda_stand_in.settings import NOTICE, Settings, note, read_settings

# torch's version says it too, so that each document of a run does.
_VERSION = "2.13.0+cu128.stand.in"

# Sizes that a processor can do, and the time that it takes.
_SMALL: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "gpudiag.bandwidth.compute": {
            "_MATMUL_GPU_SIZE": 192,
            "_CHAIN_GPU_SIZE": 128,
            "_SECONDS_ON_GPU": 0.2,
            "_POINT_SECONDS_ON_GPU": 0.5,
        },
        "gpudiag.bandwidth.copies": {
            "_GPU_COPY_BYTES": 4 << 20,
            "_HOST_COPY_BYTES": 2 << 20,
            "_PEER_COPY_BYTES": 1 << 20,
            "_SECONDS_ON_GPU": 0.1,
            "_HOST_COPY_SECONDS": 0.2,
        },
        "gpudiag.bandwidth.patterns": {"_BLOCK_BYTES_ON_GPU": 16 << 20},
        "gpudiag.collectives.pair_line": {"_NCCL_LARGE_BYTES": 1 << 20, "_SMALL_BYTES": 1 << 12},
        "gpudiag.collectives.sweep": {"_BURST_BYTES": {"cpu": 4 << 20, "cuda": 4 << 20}},
        "gpudiag.probe.torch.answer": {"DEADLINE_SECONDS": 180.0},  # of a processor that others use too
        "gpudiag.runs.placement": {"_GPU_MAX_BYTES": 1 << 18},
        "gpudiag.runs.preflight_measures": {"_GPU_MAX_BYTES": 1 << 20},
    }
)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds modules as others do, and adds to what running them makes."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._busy: set[str] = set()
        self._after: dict[str, Callable[[Any], None]] = {
            "torch": self._end_import,
            "torch.version": self._set_version,
            "torch.cuda": self._complete_cuda,
            "gpudiag.cli.main": _describe_so_at_the_end,
        }
        if not settings.real_sizes:
            self._after |= {name: _make_small for name in _SMALL}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname in self._busy:
            return None
        self._prepare(fullname)
        after = self._after.get(fullname)
        if after is None:
            return None
        self._busy.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._busy.discard(fullname)
        if spec is not None and spec.loader is not None:
            _add_to_loader(spec.loader, after)
        return spec

    def _prepare(self, name: str) -> None:
        if name == "torch":
            _load_before_torch(self._settings.library)
        elif name == "torch.cuda" and "torch._C" in sys.modules:
            bindings.fill_cuda(sys.modules["torch._C"], self._settings)
        elif name == "torch.distributed.distributed_c10d":
            bindings.fill_distributed(self._settings)

    def _end_import(self, module: Any) -> None:
        bindings.add_storages(module)
        if self._settings.asked_by_import:
            eval(self._settings.asked_by_import, {"torch": module})

    def _set_version(self, module: Any) -> None:
        module.cuda, module.__version__ = self._settings.runtime_version, _VERSION

    def _complete_cuda(self, module: Any) -> None:
        # The command's process looks at torch's version too, and never comes here.
        note(self._settings, "torch")
        bindings.add_properties(module)


def install() -> None:
    """Let this process see GPUs; gpudiag takes them, and the simulated NVML, for real ones."""
    if os.environ.get("GPUDIAG_SIMULATED_TORCH"):
        os.environ["CUDA_STAND_IN_TORCH"] = os.environ.pop("GPUDIAG_SIMULATED_TORCH")
        os.environ.pop("GPUDIAG_SIMULATED", None)
    sys.meta_path.insert(0, _Finder(read_settings()))


def _add_to_loader(loader: Any, after: Callable[[Any], None]) -> None:
    run = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        run(module)
        after(module)

    loader.exec_module = exec_module


def _load_before_torch(library: str) -> None:
    """Load the extension first: torch reads the registry of CUDA's hooks once."""
    spec = importlib.machinery.PathFinder.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return
    folder = f"{spec.submodule_search_locations[0]}/lib"
    if os.path.exists(f"{folder}/libtorch_global_deps.so"):
        ctypes.CDLL(f"{folder}/libtorch_global_deps.so", mode=ctypes.RTLD_GLOBAL)
    ctypes.CDLL(library)


def _make_small(module: Any) -> None:
    for name, value in _SMALL[module.__name__].items():
        if not hasattr(module, name):
            raise AttributeError(
                f"{module.__name__} has no {name} any more: see tests/cuda_stand_in/importing.py"
            )
        setattr(module, name, value)


def _describe_so_at_the_end(module: Any) -> None:
    """Let every command of gpudiag say on standard error what its result does not show."""
    atexit.register(lambda: print(NOTICE, file=sys.stderr))
