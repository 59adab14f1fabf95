"""How fast matrix products are, how fast they stay, and whether one seed gives one answer every time.

The chains (products, attention, reductions) are so deep that one wrong bit spreads over the whole result,
which is hashed. They have only operations that give the same bits on the same device, software and shapes.
"""

import ctypes
import hashlib
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as functional

from gpudiag.bandwidth.bench import Bench
from gpudiag.bandwidth.memory import WORKSPACE_BYTES, NotOfferedError, attempt, require_free
from gpudiag.bandwidth.scaled_products import product_of
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
# An H100 and an H200 at 700 W start at 1,980 MHz and come down to some 1,450 in the first seven tenths of a
# second of float16 products (NVML's clocks in bandwidth runs of 2026-11-26): what is measured begins behind
# that.
_SETTLE_SECONDS_ON_GPU = 0.75
_SECONDS_ON_GPU = 1.5
_SECONDS_ON_CPU = 0.3
# Two operands and a result in float32, which narrower types are made from.
_MATRICES, _MATRIX_ELEMENT_BYTES = 3, 4
# One point of a sustained load: short enough for a curve, long enough not to measure the launch.
_POINT_SECONDS_ON_GPU = 2.0
_POINT_SECONDS_ON_CPU = 0.5
_BURST = 8  # products between two clock readings: waiting after each would leave pauses


def measure_matmul(bench: Bench) -> None:
    """Time products of each dtype of the plan, on every device at once."""
    for dtype in bench.plan.dtypes:
        time_dtype = partial(attempt, bench, MATMUL, partial(_time_dtype, bench, dtype))
        bench.together(f"{MATMUL} {dtype}", time_dtype)
    for dtype in bench.plan.scaled_dtypes:
        time_dtype = partial(attempt, bench, MATMUL, partial(_time_scaled, bench, dtype))
        bench.together(f"{MATMUL} {dtype}", time_dtype)


def measure_sustained(bench: Bench) -> None:
    """Time products without a pause for the plan's seconds, in its last dtype, the heaviest load."""
    dtype = bench.plan.dtypes[-1]
    load: list[_Load] = []  # none where there is no room for it
    attempt(bench, SUSTAINED, lambda: load.append(_Load.of(bench, dtype)))
    bench.group.barrier()
    started = time.perf_counter()
    points: list[SustainedPoint] = []
    # The same number on every rank, or they would fall out of step; one without a load waits as long.
    for _ in range(_count_points(bench)):
        elapsed = time.perf_counter() - started
        flops = bench.step(SUSTAINED, lambda: _burn(bench, load[0]) if load else _wait(bench))
        points.append(SustainedPoint(elapsed, flops))
    seconds = time.perf_counter() - started
    if load:
        bench.emit("sustained", SustainedResult(bench.rank, bench.device_uuid, dtype, seconds, tuple(points)))
    bench.group.barrier()


@dataclass(frozen=True, slots=True)
class _Load:
    """What a sustained load multiplies."""

    size: int
    left: torch.Tensor
    right: torch.Tensor
    out: torch.Tensor

    @classmethod
    def of(cls, bench: Bench, dtype: str) -> "_Load":
        """The matrices, on the rank's device."""
        size, left, right = _operands(bench, dtype)
        return cls(size, left, right, torch.empty_like(left))


def _time_dtype(bench: Bench, dtype: str) -> None:
    size, left, right = _operands(bench, dtype)
    out = torch.empty_like(left)
    _time_product(bench, dtype, size, lambda: torch.matmul(left, right, out=out))


def _time_scaled(bench: Bench, dtype: str) -> None:
    size = _MATMUL_GPU_SIZE if bench.is_cuda else _MATMUL_CPU_SIZE
    product = product_of(bench, dtype, size)
    if product is not None:
        _time_product(bench, dtype, size, product)


def _time_product(bench: Bench, dtype: str, size: int, product: Callable[[], torch.Tensor]) -> None:
    seconds = bench.seconds(_SECONDS_ON_GPU, _SECONDS_ON_CPU)
    timing = bench.time(
        product,
        at_least_seconds=seconds,
        settle_seconds=_SETTLE_SECONDS_ON_GPU,
    )
    result = ComputeResult(
        rank=bench.rank,
        device_uuid=bench.device_uuid,
        dtype=dtype,
        size=size,
        iterations=timing.iterations,
        time_p50_seconds=timing.p50_seconds,
        time_best_seconds=timing.best_seconds,
        flops_per_second=_flops(size) / timing.p50_seconds,
        began_seconds=timing.began_seconds,
        ended_seconds=timing.ended_seconds,
    )
    bench.emit("compute", result)


def _count_points(bench: Bench) -> int:
    point_seconds = bench.seconds(_POINT_SECONDS_ON_GPU, _POINT_SECONDS_ON_CPU)
    return max(2, round(bench.plan.sustained_seconds / point_seconds))


def _burn(bench: Bench, load: _Load) -> float:
    """Operations per second over one stretch of the load."""
    started = time.perf_counter()
    until = started + bench.seconds(_POINT_SECONDS_ON_GPU, _POINT_SECONDS_ON_CPU)
    count = 0
    while time.perf_counter() < until:
        for _ in range(_BURST):
            torch.matmul(load.left, load.right, out=load.out)
        bench.synchronize()
        count += _BURST
    return count * _flops(load.size) / (time.perf_counter() - started)


def _wait(bench: Bench) -> float:
    """No operations, for as long as the others are under load."""
    time.sleep(bench.seconds(_POINT_SECONDS_ON_GPU, _POINT_SECONDS_ON_CPU))
    return 0.0


def _operands(bench: Bench, dtype: str) -> tuple[int, torch.Tensor, torch.Tensor]:
    """Normally distributed random matrices: zeros would need less power, and so run faster.

    Raises:
        TooLittleMemoryError: a GPU has no room for them; no limit holds for smaller ones.
    """
    size = _MATMUL_GPU_SIZE if bench.is_cuda else _MATMUL_CPU_SIZE
    needed = _MATRICES * size**2 * _MATRIX_ELEMENT_BYTES + WORKSPACE_BYTES
    require_free(bench, needed, f" for products of {size} x {size}")
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
# Attention in float32 without a fused kernel keeps a square of scores for each head, twice.
_CHAIN_MATRICES = 4 + 2 * _HEADS
_LEAST_REPEATS = 3  # of two that differ, either may be wrong; of three, the odd one is
_DIGEST_BYTES = 8


def measure_determinism(bench: Bench) -> None:
    """Emit the digests of every chain in every dtype of the plan, each repeated for the plan's seconds."""
    for dtype in bench.plan.repeat_dtypes or bench.plan.dtypes:
        for name, chain in SCALED_CHAINS.items() if dtype in _SCALED_DTYPES else CHAINS.items():
            repeat = partial(attempt, bench, DETERMINISM, partial(_repeat, bench, name, chain, dtype))
            bench.step(f"{DETERMINISM} {name} {dtype}", repeat)
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


def _scaled_chain(data: torch.Tensor) -> torch.Tensor:
    """Products of 8-bit floats in a row, as in FP8 training: quantised, with a scale for each side."""
    scale = torch.ones((), device=data.device)
    weight = (data.roll(1, 0) / data.shape[0] ** 0.5).to(torch.float8_e4m3fn)
    for _ in range(_DEPTH):
        # torch has no public function for it; the one behind is that of every library for FP8 (float8 of
        # torchao).
        product = torch._scaled_mm(
            data.to(torch.float8_e4m3fn), weight.T, scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16
        )
        data = torch.tanh(product).float()
    return data


CHAINS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "matmul": _matmul_chain,
    "attention": _attention_chain,
    "reduction": _reduction_chain,
}
_SCALED_DTYPES = ("float8_e4m3fn",)
SCALED_CHAINS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {"matmul": _scaled_chain}


def _repeat(bench: Bench, name: str, chain: Callable[[torch.Tensor], torch.Tensor], dtype: str) -> None:
    """Emit the digests of that chain.

    Raises:
        TooLittleMemoryError: a GPU has no room for it; other kernels give other bits.
    """
    size = _CHAIN_GPU_SIZE if bench.is_cuda else _CHAIN_CPU_SIZE
    element_bytes = max(_MATRIX_ELEMENT_BYTES, getattr(torch, dtype).itemsize)
    needed = _CHAIN_MATRICES * size**2 * element_bytes + WORKSPACE_BYTES
    require_free(bench, needed, f" for chains of {size} x {size}")
    # Made on the CPU: its generator gives the same numbers everywhere.
    generator = torch.Generator().manual_seed(_SEED)
    kind = torch.float32 if dtype in _SCALED_DTYPES else getattr(torch, dtype)
    data = torch.randn(size, size, generator=generator).to(kind).to(bench.device)
    if dtype in _SCALED_DTYPES:
        _require_products(bench, chain, data, dtype)
    digests: Counter[str] = Counter()
    until = time.perf_counter() + bench.plan.repeat_seconds
    while digests.total() < _LEAST_REPEATS or time.perf_counter() < until:
        with torch.no_grad():
            result = chain(data)
        bench.corrupt(result)
        digests[_digest(result)] += 1
    digest, count = digests.most_common(1)[0]
    result_of_chain = DeterminismResult(
        rank=bench.rank,
        device_uuid=bench.device_uuid,
        device_name=torch.cuda.get_device_name(bench.device) if bench.is_cuda else "cpu",
        chain=name,
        dtype=dtype,
        repeats=digests.total(),
        digest=digest,
        deviating=digests.total() - count,
    )
    bench.emit("determinism", result_of_chain)


def _require_products(
    bench: Bench, chain: Callable[[torch.Tensor], torch.Tensor], data: torch.Tensor, dtype: str
) -> None:
    """Return if this torch multiplies that type on this device.

    Raises:
        NotOfferedError: it does not, with torch's words; a device that failed raises its own error.
    """
    try:
        chain(data)
    except torch.OutOfMemoryError:
        raise
    except (AttributeError, TypeError, RuntimeError) as error:  # not in this torch, or not on this device
        bench.synchronize()
        words = str(error).strip().splitlines()
        raise NotOfferedError(f"no products of {dtype} here: {words[0] if words else error!r}") from error


def _digest(result: torch.Tensor) -> str:
    """A hash over every bit of the result."""
    data = result.detach().contiguous().cpu()
    # The memory itself: NumPy, which would be torch's way to bytes, need not be installed.
    return hashlib.blake2b(
        ctypes.string_at(data.data_ptr(), data.nbytes), digest_size=_DIGEST_BYTES
    ).hexdigest()
