"""Sizes and bandwidths of collectives, defined as in nccl-tests, so that figures are comparable.

Source: doc/PERFORMANCE.md and src/*.cu of https://github.com/NVIDIA/nccl-tests (read 2026-11). `n` is
the world size, S the size in bytes, t the time of one operation in seconds:

    algbw = S / t          busbw = algbw x factor(n)

S is the whole array where each rank holds a part of it (`whole_array` of an operation), and the buffer of
one rank elsewhere. hypercube_perf counts S (n-1)/n in its algbw. A barrier moves no data and has only a time.
"""

from collections.abc import Mapping
from types import MappingProxyType

from gpudiag.model.operation import BARRIER, OPERATIONS
from gpudiag.model.reading import Missing, MissingReason, Reading

ONE_RANK = Missing(MissingReason.NOT_SUPPORTED, "one rank uses no bus")
NO_DATA = Missing(MissingReason.NOT_SUPPORTED, "a barrier moves no data")

DTYPE_SIZES_BYTES: Mapping[str, int] = MappingProxyType(
    {
        "float64": 8,
        "float32": 4,
        "float16": 2,
        "bfloat16": 2,
        "float8_e4m3fn": 1,
        "float8_e5m2": 1,
        "int8": 1,
        "uint8": 1,
        "int32": 4,
        "int64": 8,
    }
)


def parts(op: str, world_size: int) -> int:
    """The number of equal parts that `op` cuts its array into: one per rank where S is the whole array."""
    operation = OPERATIONS[op]
    if operation.units is not None:
        return operation.units(world_size)
    return world_size if operation.whole_array else 1


def elements_for(op: str, dtype: str, size_bytes: int, world_size: int) -> int:
    """Elements that S counts: as many as fit in whole parts, at least one per part; none in 0 bytes."""
    if size_bytes == 0 or op == BARRIER:
        return 0
    count = parts(op, world_size)
    return count * max(1, size_bytes // (count * DTYPE_SIZES_BYTES[dtype]))


def algbw_bytes_per_second(op: str, size_bytes: int, seconds: float, world_size: int = 1) -> Reading[float]:
    """Algorithm bandwidth in bytes per second: S / t.

    Of a hypercube, S is what a rank gets of the others' data.
    """
    if op == BARRIER:
        return NO_DATA
    factor = OPERATIONS[op].alg_factor
    return size_bytes / seconds * (1.0 if factor is None else factor(world_size))


def busbw_bytes_per_second(op: str, algbw: Reading[float], world_size: int) -> Reading[float]:
    """Bus bandwidth in bytes per second; NOT_SUPPORTED for one rank, which copies and uses no bus."""
    if isinstance(algbw, Missing):
        return algbw
    if world_size == 1:
        return ONE_RANK
    return algbw * OPERATIONS[op].bus_factor(world_size)
