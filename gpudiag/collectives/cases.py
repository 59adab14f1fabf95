"""What the ranks are to measure, worked out before any of them starts: a list of cases."""

from dataclasses import dataclass

from gpudiag.collectives.formulas import DTYPE_SIZES_BYTES, elements_for
from gpudiag.model.plan import NcclTestPlan


@dataclass(frozen=True, slots=True)
class Case:
    """One operation at one size: what gives one CollectiveResult. `size_bytes` is S of nccl-tests."""

    op: str
    reduce: str
    dtype: str
    elements: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Sweep:
    """What every rank is told: the cases in order, how often to run each, and how to verify them.

    `iterations` and `warmup` of None are decided by rank 0 from the time one operation takes.
    """

    backend: str
    cases: tuple[Case, ...]
    iterations: int | None
    warmup: int | None
    verify: str


def plan_sweep(plan: NcclTestPlan, backend: str, world_size: int, max_bytes: int) -> Sweep:
    """The sweep that `plan` asks for with that backend, so many ranks and that largest size."""
    cases = tuple(
        case
        for op in plan.op
        for dtype in plan.dtype
        for case in _cases(plan, op, dtype, world_size, max_bytes)
    )
    return Sweep(backend, cases, plan.iterations, plan.warmup, plan.verify)


def _cases(plan: NcclTestPlan, op: str, dtype: str, world_size: int, max_bytes: int) -> list[Case]:
    """One case per size; sizes that hold the same number of elements count once."""
    counts = (elements_for(op, dtype, size, world_size) for size in sizes_bytes(plan, max_bytes))
    return [
        Case(op, plan.reduce, dtype, elements, elements * DTYPE_SIZES_BYTES[dtype])
        for elements in dict.fromkeys(counts)
    ]


def sizes_bytes(plan: NcclTestPlan, max_bytes: int) -> list[int]:
    """The sizes of the sweep: from the smallest, times the step factor, while not above the largest."""
    sizes = []
    size = plan.min_bytes
    while size <= max_bytes:
        sizes.append(size)
        size *= plan.step_factor
    return sizes
