"""Matrix products: how fast they are, and how fast they stay."""

import time
from functools import partial

import torch

from gpudiag.bandwidth.bench import Bench
from gpudiag.model.active import (
    MATMUL,
    SUSTAINED,
    ComputeResult,
    SustainedPoint,
    SustainedResult,
)

_GPU_SIZE = 8192
_CPU_SIZE = 1024
_SECONDS_ON_GPU = 2.0
_SECONDS_ON_CPU = 0.3
# One point of a sustained load: short enough for a curve, long enough not to measure the launch.
_POINT_SECONDS_ON_GPU = 2.0
_POINT_SECONDS_ON_CPU = 0.5
_BURST = 8  # products between two clock readings: waiting after each would leave pauses


def measure_matmul(bench: Bench) -> None:
    """Time products of each dtype of the plan, on every device at once."""
    for dtype in bench.plan.dtypes:
        bench.together(f"{MATMUL} {dtype}", partial(_time_dtype, bench, dtype))


def measure_sustained(bench: Bench) -> None:
    """Time products without a pause for the plan's seconds, in its last dtype, the heaviest load."""
    dtype = bench.plan.dtypes[-1]
    size, left, right = _operands(bench, dtype)
    out = torch.empty_like(left)
    bench.group.barrier()
    started = time.perf_counter()
    points: list[SustainedPoint] = []
    for _ in range(_count_points(bench)):  # the same number on every rank, or they would fall out of step
        elapsed = time.perf_counter() - started
        flops = bench.step(SUSTAINED, lambda: _burn(bench, size, left, right, out))
        points.append(SustainedPoint(elapsed, flops))
    seconds = time.perf_counter() - started
    bench.emit("sustained", SustainedResult(bench.rank, bench.device_uuid, dtype, seconds, tuple(points)))
    bench.group.barrier()


def _time_dtype(bench: Bench, dtype: str) -> None:
    size, left, right = _operands(bench, dtype)
    out = torch.empty_like(left)
    seconds = bench.seconds(_SECONDS_ON_GPU, _SECONDS_ON_CPU)
    began = time.monotonic()  # the clock of all processes here: another one reads the sensors
    timing = bench.time(lambda: torch.matmul(left, right, out=out), at_least_seconds=seconds)
    result = ComputeResult(
        rank=bench.rank,
        device_uuid=bench.device_uuid,
        dtype=dtype,
        size=size,
        iterations=timing.iterations,
        time_p50_seconds=timing.p50_seconds,
        time_best_seconds=timing.best_seconds,
        flops_per_second=_flops(size) / timing.p50_seconds,
        began_seconds=began,
        ended_seconds=time.monotonic(),
    )
    bench.emit("compute", result)


def _count_points(bench: Bench) -> int:
    point_seconds = bench.seconds(_POINT_SECONDS_ON_GPU, _POINT_SECONDS_ON_CPU)
    return max(2, round(bench.plan.sustained_seconds / point_seconds))


def _burn(bench: Bench, size: int, left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> float:
    """Operations per second over one stretch of the load."""
    started = time.perf_counter()
    until = started + bench.seconds(_POINT_SECONDS_ON_GPU, _POINT_SECONDS_ON_CPU)
    count = 0
    while time.perf_counter() < until:
        for _ in range(_BURST):
            torch.matmul(left, right, out=out)
        bench.synchronize()
        count += _BURST
    return count * _flops(size) / (time.perf_counter() - started)


def _operands(bench: Bench, dtype: str) -> tuple[int, torch.Tensor, torch.Tensor]:
    """Normally distributed random matrices: zeros would need less power, and so run faster."""
    size = _GPU_SIZE if bench.is_cuda else _CPU_SIZE
    generator = torch.Generator(bench.device).manual_seed(7)
    left, right = (
        torch.randn(size, size, device=bench.device, generator=generator).to(getattr(torch, dtype))
        for _ in range(2)
    )
    return size, left, right


def _flops(size: int) -> float:
    return 2.0 * size**3
