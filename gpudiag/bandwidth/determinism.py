"""Silent data corruption: chains of operations from one seed must give one answer, every time, everywhere.

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
from gpudiag.model.active import DETERMINISM, DeterminismResult

_SEED = 20261120
_DEPTH = 8
_GPU_SIZE = 2048
_CPU_SIZE = 256
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
    size = _GPU_SIZE if bench.is_cuda else _CPU_SIZE
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
