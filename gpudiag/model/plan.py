"""What a run is asked to do: one frozen, bounded Plan per kind of run, to and from the command line."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, fields

from gpudiag.errors import UsageError

BACKENDS = ("auto", "nccl", "gloo")
OPERATIONS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "send_recv",
    "barrier",
)
REDUCING_OPERATIONS = ("all_reduce", "reduce_scatter", "reduce")
FLOAT_DTYPES = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
INTEGER_DTYPES = ("int8", "uint8", "int32", "int64")
DTYPES = (*FLOAT_DTYPES, *INTEGER_DTYPES)
# As the only dtype: all that the backend and the reduction have.
ALL = "all"
REDUCTIONS = ("sum", "avg", "min", "max")
VERIFY_MODES = ("every", "last", "off")

# What the fields may be at most: wide enough for every machine, narrow enough that a slip of the
# finger (or a request to the service) cannot ask for a week of work.
MAX_NPROC = 256
MAX_SIZE_BYTES = 1024**4
MAX_STEP_FACTOR = 1024
MAX_ITERATIONS = 1_000_000
MAX_WARMUP = 100_000
MAX_TIMEOUT_SECONDS = 24 * 3600.0


def require_known(value: str, known: Sequence[str], what: str) -> None:
    """Nothing, if `value` is one of `known`.

    Raises:
        UsageError: it is not; the hint gives the nearest known name, or all of them.
    """
    if value in known:
        return
    near = difflib.get_close_matches(value, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"choose from {', '.join(known)}"
    raise UsageError(f"{value!r} is not {what} that gpudiag knows", hint=hint)


def require_between(value: float, low: float, high: float, flag: str) -> None:
    """Nothing, if `value` lies between `low` and `high`.

    Raises:
        UsageError: it does not; the message names the flag and its bounds.
    """
    if not low <= value <= high:
        raise UsageError(f"{flag} {_plain(value)} is out of range", hint=f"{_plain(low)} to {_plain(high)}")


@dataclass(frozen=True, slots=True)
class NcclTestPlan:
    """One nccl-test run: which collectives, over which sizes, how often, and how strictly verified.

    None stands for "gpudiag decides": the ranks from the GPUs it finds, the largest size from the
    memory, the iterations and warm-ups from the time that one operation takes.

    Raises:
        UsageError: a field is out of its bounds, or two contradict each other.
    """

    backend: str = "auto"
    nproc: int | None = None
    op: tuple[str, ...] = ("all_reduce",)
    dtype: tuple[str, ...] = ("float32",)
    reduce: str = "sum"
    min_bytes: int = 8
    max_bytes: int | None = None
    step_factor: int = 2
    iterations: int | None = None
    warmup: int | None = None
    unaligned: bool = False
    verify: str = "every"
    inject: tuple[str, ...] = ()
    timeout_seconds: float | None = None
    rendezvous_timeout_seconds: float = 120.0

    def __post_init__(self) -> None:
        """Refuse what cannot be run, in one sentence."""
        require_known(self.backend, BACKENDS, "a backend")
        require_known(self.reduce, REDUCTIONS, "a reduction")
        require_known(self.verify, VERIFY_MODES, "a way to verify")
        _require_names(self.op, OPERATIONS, "an operation", "--op")
        _require_names(self.dtype, DTYPES if self.dtype != (ALL,) else (ALL,), "a dtype", "--dtype")
        self._require_average()
        self._require_counts()
        self._require_sizes()
        if self.inject and self.verify != "every":
            raise UsageError(
                f"--inject needs --verify every, not {self.verify}",
                hint="leave --verify out: --inject implies it",
            )

    def _require_average(self) -> None:
        integers = [dtype for dtype in self.dtype if dtype in INTEGER_DTYPES]
        if self.reduce == "avg" and integers and any(op in REDUCING_OPERATIONS for op in self.op):
            raise UsageError(
                f"--reduce avg has no exact result for {', '.join(integers)}",
                hint=f"choose from {', '.join(FLOAT_DTYPES)}",
            )

    def _require_counts(self) -> None:
        if self.nproc is not None:
            require_between(self.nproc, 1, MAX_NPROC, "--nproc")
        if self.iterations is not None:
            require_between(self.iterations, 1, MAX_ITERATIONS, "--iterations")
        if self.warmup is not None:
            require_between(self.warmup, 0, MAX_WARMUP, "--warmup")
        if self.timeout_seconds is not None:
            require_between(self.timeout_seconds, 1, MAX_TIMEOUT_SECONDS, "--timeout")
        require_between(self.rendezvous_timeout_seconds, 1, MAX_TIMEOUT_SECONDS, "--rendezvous-timeout")

    def _require_sizes(self) -> None:
        require_between(self.min_bytes, 0, MAX_SIZE_BYTES, "--min-bytes")
        require_between(self.step_factor, 2, MAX_STEP_FACTOR, "--step-factor")
        if self.max_bytes is None:
            return
        require_between(self.max_bytes, 0, MAX_SIZE_BYTES, "--max-bytes")
        if self.min_bytes > self.max_bytes:
            raise UsageError(
                f"--min-bytes {self.min_bytes} is more than --max-bytes {self.max_bytes}",
                hint="swap them, or leave one out",
            )

    def to_argv(self) -> tuple[str, ...]:
        """The flags that ask for this plan; what equals the default is left out."""
        argv: list[str] = []
        for field in fields(self):
            value, flag = getattr(self, field.name), FLAGS[field.name]
            if value == field.default:
                continue
            if field.name == "inject":
                argv += [word for fault in value for word in (flag, fault)]
            elif value is True:
                argv.append(flag)
            else:
                argv += [flag, ",".join(value) if isinstance(value, tuple) else str(value)]
        return tuple(argv)


# The flag of each field, in the order of the command's help.
FLAGS = {
    "backend": "--backend",
    "nproc": "--nproc",
    "op": "--op",
    "dtype": "--dtype",
    "reduce": "--reduce",
    "min_bytes": "--min-bytes",
    "max_bytes": "--max-bytes",
    "step_factor": "--step-factor",
    "iterations": "--iterations",
    "warmup": "--warmup",
    "unaligned": "--unaligned",
    "verify": "--verify",
    "inject": "--inject",
    "timeout_seconds": "--timeout",
    "rendezvous_timeout_seconds": "--rendezvous-timeout",
}


def _require_names(values: tuple[str, ...], known: Sequence[str], what: str, flag: str) -> None:
    if not values:
        raise UsageError(f"{flag} names nothing", hint=f"choose from {', '.join(known)}")
    for value in values:
        require_known(value, known, what)
    if len(set(values)) < len(values):
        raise UsageError(f"{flag} {','.join(values)} names one of them twice", hint="name each once")


def _plain(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
