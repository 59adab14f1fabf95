"""Strategies, one file each: how a framework is called, and how to inspect what it did."""

from importlib import import_module

from gpudiag.training.strategies.base import Setup, Strategy

# Imported only when selected: each of them imports its framework.
_PLACES = {
    "data-parallel": ("data_parallel", "DataParallelStrategy"),
    "ddp": ("ddp", "DdpStrategy"),
    "fsdp2": ("fsdp2", "Fsdp2Strategy"),
    "zero0": ("zero", "ZeroStrategy"),
    "zero1": ("zero", "ZeroStrategy"),
    "zero2": ("zero", "ZeroStrategy"),
    "zero3": ("zero", "ZeroStrategy"),
    "horovod": ("horovod", "HorovodStrategy"),
    "accelerate": ("accelerate", "AccelerateStrategy"),
}


def start_strategy(setup: Setup) -> Strategy:
    """The job's strategy around its model, ready for the first step."""
    module, name = _PLACES[setup.job.strategy]
    strategy_type: type[Strategy] = getattr(import_module(f"{__name__}.{module}"), name)
    return strategy_type(setup)
