"""Arithmetic: how fast matrix products are, how fast they stay, and whether one seed gives one answer every time.

A processor that computes wrongly now and then passes every other test. The chains are what training
runs on (products, attention, reductions), deep enough that one wrong bit spreads over the whole
result, and the whole result is hashed. Every operation in them gives the same bits on the same kind of
device, the same software and the same shapes; operations that do not (atomics, as in index_add) stay out.
"""

import ctypes
import hashlib
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial

import torch
import torch.nn.functional as functional

from gpudiag.bandwidth.bench import Bench
from gpudiag.model.active import (
    DETERMINISM,
    MATMUL,
    SUSTAINED,
    ComputeResult,
    DeterminismResult,
    SustainedPoint,
    SustainedResult,
)

# --- how fast, and how fast it stays

_MATMUL_GPU_SIZE = 8192
_MATMUL_CPU_SIZE = 1024
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
    size = _MATMUL_GPU_SIZE if bench.is_cuda else _MATMUL_CPU_SIZE
    generator = torch.Generator(bench.device).manual_seed(7)
    left, right = (
        torch.randn(size, size, device=bench.device, generator=generator).to(getattr(torch, dtype))
        for _ in range(2)
    )
    return size, left, right


def _flops(size: int) -> float:
    return 2.0 * size**3


# --- always the same

_SEED = 20261120
_DEPTH = 8
_CHAIN_GPU_SIZE = 2048
_CHAIN_CPU_SIZE = 256
_HEADS = 8
_LEAST_REPEATS = 3  # two that differ do not say which is wrong; three do
_DIGEST_BYTES = 8


def measure_determinism(bench: Bench) -> None:
    """Emit the digests of every chain in every dtype of the plan, each repeated for the plan's seconds."""
    for dtype in bench.plan.dtypes:
        for name, chain in CHAINS.items():
            step = f"{DETERMINISM} {name} {dtype}"
            result = bench.step(step, partial(_repeat, bench, name, chain, dtype))
            bench.emit("determinism", result)
        bench.group.barrier()


def _matmul_chain(data: torch.Tensor) -> torch.Tensor:
    """Products one after the other; tanh keeps the values in range."""
    weight = data.roll(1, 0).T.contiguous() / data.shape[0] ** 0.5
    for _ in range(_DEPTH):
        data = torch.tanh(data @ weight)
    return data


def _attention_chain(data: torch.Tensor) -> torch.Tensor:
    """Attention over the rows, as torch's own function chooses to compute it on this device."""
    rows, width = data.shape
    heads = data.view(1, rows, _HEADS, width // _HEADS).transpose(1, 2)
    for _ in range(_DEPTH):
        heads = functional.scaled_dot_product_attention(heads, heads.roll(1, 2), heads.roll(2, 2))
    return heads.contiguous()


def _reduction_chain(data: torch.Tensor) -> torch.Tensor:
    """Sums, maxima and softmax along both axes."""
    for _ in range(_DEPTH):
        data = functional.softmax(data, 0) - data.mean(1, keepdim=True) + data.amax(0, keepdim=True) / 8
        data = functional.layer_norm(data, data.shape[1:])
    return data


CHAINS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "matmul": _matmul_chain,
    "attention": _attention_chain,
    "reduction": _reduction_chain,
}


def _repeat(
    bench: Bench, name: str, chain: Callable[[torch.Tensor], torch.Tensor], dtype: str
) -> DeterminismResult:
    size = _CHAIN_GPU_SIZE if bench.is_cuda else _CHAIN_CPU_SIZE
    # Made on the CPU: its generator gives the same numbers everywhere.
    generator = torch.Generator().manual_seed(_SEED)
    data = torch.randn(size, size, generator=generator).to(getattr(torch, dtype)).to(bench.device)
    digests: Counter[str] = Counter()
    until = time.perf_counter() + bench.plan.repeat_seconds
    while digests.total() < _LEAST_REPEATS or time.perf_counter() < until:
        with torch.no_grad():
            result = chain(data)
        bench.corrupt(result)
        digests[_digest(result)] += 1
    digest, count = digests.most_common(1)[0]
    return DeterminismResult(
        rank=bench.rank,
        device_uuid=bench.device_uuid,
        device_name=torch.cuda.get_device_name(bench.device) if bench.is_cuda else "cpu",
        chain=name,
        dtype=dtype,
        repeats=digests.total(),
        digest=digest,
        deviating=digests.total() - count,
    )


def _digest(result: torch.Tensor) -> str:
    """A hash over every bit of the result."""
    data = result.detach().contiguous().cpu()
    # The memory itself: NumPy, which would be torch's way to bytes, need not be installed.
    return hashlib.blake2b(
        ctypes.string_at(data.data_ptr(), data.nbytes), digest_size=_DIGEST_BYTES
    ).hexdigest()
