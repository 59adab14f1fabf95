"""What the ranks are to measure, worked out before any of them starts: a list of cases."""

from dataclasses import dataclass

from gpudiag.collectives.formulas import DTYPE_SIZES_BYTES, elements_for, parts
from gpudiag.errors import UsageError
from gpudiag.model.operation import BARRIER, OPERATIONS
from gpudiag.model.option import ALL
from gpudiag.model.plan import DTYPES, INTEGER_DTYPES, PLAIN, NcclTestPlan

# gloo refuses them with "Invalid scalar type" (torch 2.13); NCCL reduces them from 2.24 on, on GPUs of
# compute capability 9.0 and later.
_FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
# A sweep from 0 bytes continues from here: no step factor leads away from 0.
_AFTER_ZERO_BYTES = 8


@dataclass(frozen=True, slots=True)
class Case:
    """One operation at one size, which gives one CollectiveResult.

    `size_bytes` is S of nccl-tests, `elements` what it counts. `reduce` is None for an operation
    that only moves data. `unaligned` buffers start one element after an aligned address.
    """

    op: str
    reduce: str | None
    dtype: str
    elements: int
    size_bytes: int
    in_place: bool
    unaligned: bool

    def part_elements(self, world_size: int) -> int:
        """Elements of one part: what one rank holds where S is the whole array."""
        return self.elements // parts(self.op, world_size)


@dataclass(frozen=True, slots=True)
class Sweep:
    """What every rank is given: the cases in order, how often to run each, and how to verify them.

    `iterations` and `warmup` of None are decided by rank 0 from the time one operation takes.
    """

    backend: str
    cases: tuple[Case, ...]
    iterations: int | None
    warmup: int | None
    verify: str
    graph: bool = False
    buffers: str = PLAIN


def plan_sweep(
    plan: NcclTestPlan, backend: str, world_size: int, max_bytes: int, *, float8: bool = False
) -> Sweep:
    """The sweep that `plan` asks for with that backend, that many ranks and that largest size.

    `float8`: the backend supports 8-bit floats here.

    Raises:
        UsageError: nothing is left to measure, or the backend does not support the dtype, graphs or the
            kind of buffers.
    """
    wanted = [
        *(["--graph"] if plan.graph else []),
        *([f"--buffers {plan.buffers}"] if plan.buffers != PLAIN else []),
    ]
    if wanted and backend != "nccl":
        raise UsageError(
            f"{' and '.join(wanted)} need{'s' * (len(wanted) == 1)} GPUs, and these ranks run {backend}",
            hint="leave it out on the CPU",
        )
    cases: list[Case] = []
    for op in plan.op:
        if op == BARRIER:
            cases.append(Case(op, None, "float32", 0, 0, in_place=True, unaligned=False))
        elif OPERATIONS[op].runs_on(world_size):  # no rank sends to itself
            for dtype in _dtypes(plan, op, backend, float8=float8):
                cases += _cases(plan, op, dtype, world_size, max_bytes)
    if not cases:
        raise UsageError(
            f"nothing to measure: {', '.join(plan.op)} on {world_size} ranks up to {max_bytes} bytes",
            hint=_why_nothing(plan, world_size),
        )
    return Sweep(backend, tuple(cases), plan.iterations, plan.warmup, plan.verify, plan.graph, plan.buffers)


def _why_nothing(plan: NcclTestPlan, world_size: int) -> str:
    """What leaves nothing to measure: operations that need more ranks, else the smallest size."""
    odd = [op for op in plan.op if not OPERATIONS[op].runs_on(world_size) and world_size > 1]
    if odd:
        return f"{' and '.join(odd)} need{'s' * (len(odd) == 1)} 2, 4, 8, 16, ... ranks: --nproc"
    few = [op for op in plan.op if OPERATIONS[op].least_ranks > world_size]
    needs = (
        f"{' and '.join(few)} need{'s' * (len(few) == 1)}"
        f" {max((OPERATIONS[op].least_ranks for op in few), default=1)} ranks"
    )
    return f"{needs}: --nproc" if few else f"--min-bytes is {plan.min_bytes}"


def _dtypes(plan: NcclTestPlan, op: str, backend: str, *, float8: bool) -> tuple[str, ...]:
    """The dtypes to measure `op` with; `all` stands for those that backend and reduction support."""
    left_out = () if float8 else _FLOAT8
    if plan.dtype != (ALL,):
        refused = [dtype for dtype in plan.dtype if dtype in left_out]
        if refused:
            raise UsageError(
                f"{backend} does not have {', '.join(refused)} here",
                hint=(
                    "8-bit floats need torch 2.8, NCCL 2.24 and GPUs of compute capability 9.0, or later ones"
                ),
            )
        return plan.dtype
    integers = INTEGER_DTYPES if plan.reduce == "avg" and OPERATIONS[op].reduces else ()
    return tuple(dtype for dtype in DTYPES if dtype not in (*left_out, *integers))


def _cases(plan: NcclTestPlan, op: str, dtype: str, world_size: int, max_bytes: int) -> list[Case]:
    """One case per placement and size; sizes that hold the same number of elements count once."""
    counts = dict.fromkeys(elements_for(op, dtype, size, world_size) for size in sizes_bytes(plan, max_bytes))
    reduce = plan.reduce if OPERATIONS[op].reduces else None
    return [
        Case(op, reduce, dtype, elements, elements * DTYPE_SIZES_BYTES[dtype], in_place, plan.unaligned)
        for in_place in OPERATIONS[op].placements
        for elements in counts
    ]


def sizes_bytes(plan: NcclTestPlan, max_bytes: int) -> list[int]:
    """The sizes of the sweep: from the smallest, times the step factor, while not above the largest."""
    sizes = [0] if plan.min_bytes == 0 else []
    size = plan.min_bytes or _AFTER_ZERO_BYTES
    while size <= max_bytes:
        sizes.append(size)
        size *= plan.step_factor
    return sizes
