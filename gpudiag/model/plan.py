"""What an nccl-test is asked to do: a frozen, bounded plan; and the words and bounds that other plans share."""

from dataclasses import dataclass
from typing import Any

from gpudiag.errors import UsageError
from gpudiag.model.operation import OPERATIONS
from gpudiag.model.option import ALL, Plan, option

BACKENDS = ("auto", "nccl", "gloo")
FLOAT_DTYPES = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
INTEGER_DTYPES = ("int8", "uint8", "int32", "int64")
DTYPES = (*FLOAT_DTYPES, *INTEGER_DTYPES)
REDUCTIONS = ("sum", "avg", "min", "max")
VERIFY_MODES = ("every", "last", "off")

DEFAULT_CPU_RANKS = 4  # the default of every command

# What the fields may be at most: wide enough for every machine, narrow enough that a slip of the
# finger (or a request to the service) cannot ask for a week of work.
MAX_NPROC = 256
MAX_SIZE_BYTES = 1024**4
MAX_STEP_FACTOR = 1024
MAX_ITERATIONS = 1_000_000
MAX_WARMUP = 100_000
MAX_TIMEOUT_SECONDS = 24 * 3600.0


def nproc_option() -> Any:
    """The field for the number of ranks, in every plan that has ranks."""
    words = f"the usable GPUs, or {DEFAULT_CPU_RANKS} gloo ranks"
    return option(None, "--nproc", "Ranks.", "N", between=(1, MAX_NPROC), default_words=words)


def timeout_option(text: str) -> Any:
    """The field for how long a run may take; `text` is its help."""
    return option(None, "--timeout", text, "SECONDS", between=(1, MAX_TIMEOUT_SECONDS), default_words="none")


def rendezvous_option() -> Any:
    """The field for how long ranks may take to meet."""
    bounds = (1, MAX_TIMEOUT_SECONDS)
    return option(120.0, "--rendezvous-timeout", "For all ranks to meet.", "SECONDS", between=bounds)


@dataclass(frozen=True, slots=True)
class NcclTestPlan(Plan):
    """One nccl-test run: which collectives, over which sizes, how often, and how strictly verified.

    None stands for "gpudiag decides": the ranks from the GPUs it finds, the largest size from the
    memory, the iterations and warm-ups from the time that one operation takes.

    Raises:
        UsageError: a field is out of its bounds, or two contradict each other.
    """

    backend: str = option(
        "auto",
        "--backend",
        f"{', '.join(BACKENDS)}; auto takes gloo only where there is no trace of a GPU, and then could not tell (3).",
        "NAME",
        choices=BACKENDS,
        what="a backend",
    )
    nproc: int | None = nproc_option()
    op: tuple[str, ...] = option(
        ("all_reduce",),
        "--op",
        f"{', '.join(OPERATIONS)} or all.",
        "NAME,...",
        choices=tuple(OPERATIONS),
        what="an operation",
        all_means=tuple(OPERATIONS),
    )
    # `all` alone is resolved by the sweep: all dtypes that the backend and the reduction have.
    dtype: tuple[str, ...] = option(
        ("float32",),
        "--dtype",
        f"{', '.join(DTYPES)} or all.",
        "NAME,...",
        choices=DTYPES,
        what="a dtype",
        all_means=(ALL,),
    )
    reduce: str = option(
        "sum", "--reduce", f"{', '.join(REDUCTIONS)}.", "NAME", choices=REDUCTIONS, what="a reduction"
    )
    min_bytes: int = option(
        8, "--min-bytes", "Smallest size.", "SIZE", between=(0, MAX_SIZE_BYTES), is_size=True
    )
    max_bytes: int | None = option(
        None,
        "--max-bytes",
        "Largest size.",
        "SIZE",
        between=(0, MAX_SIZE_BYTES),
        is_size=True,
        default_words="64M on CPU; on GPUs up to 8G within 40 % of their free memory",
    )
    step_factor: int = option(
        2, "--step-factor", "From one size to the next.", "N", between=(2, MAX_STEP_FACTOR)
    )
    iterations: int | None = option(
        None,
        "--iterations",
        "Timed, per size.",
        "N",
        between=(1, MAX_ITERATIONS),
        default_words="5 to 100, by time",
    )
    warmup: int | None = option(
        None,
        "--warmup",
        "Not timed, per size.",
        "N",
        between=(0, MAX_WARMUP),
        default_words="2 to 5, by time",
    )
    unaligned: bool = option(False, "--unaligned", "Start buffers one element after an aligned address.")
    verify: str = option(
        "every",
        "--verify",
        f"Which timed buffers: {', '.join(VERIFY_MODES)}.",
        "WHEN",
        choices=VERIFY_MODES,
        what="a way to verify",
    )
    inject: tuple[str, ...] = option(
        (),
        "--inject",
        "Make a rank misbehave, at a timed iteration or a stage: kill:2@5, stop:1@init, skip:0@3, "
        "mismatch:1@3:size, oom:2@warmup, bitflip:1@3, slow:3:20; with --localise slow:2-5:20.",
        "FAULT",
        is_repeated=True,
    )
    localise: bool = option(
        False,
        "--localise",
        "Then find the slow or lossy node, rail or link: pairs of nodes exchange data. Needs four nodes; ranks of one "
        "machine act as nodes.",
    )
    timeout_seconds: float | None = timeout_option("For the whole run; what heals within is a warning.")
    rendezvous_timeout_seconds: float = rendezvous_option()

    def __post_init__(self) -> None:
        """Refuse a plan that cannot be run, in one sentence."""
        self.require_options()
        self._require_average()
        if self.max_bytes is not None and self.min_bytes > self.max_bytes:
            raise UsageError(
                f"--min-bytes {self.min_bytes} is more than --max-bytes {self.max_bytes}",
                hint="swap them, or leave one out",
            )
        if self.inject and self.verify != "every":
            raise UsageError(
                f"--inject needs --verify every, not {self.verify}",
                hint="leave --verify out: --inject implies it",
            )

    def _require_average(self) -> None:
        integers = [dtype for dtype in self.dtype if dtype in INTEGER_DTYPES]
        if self.reduce == "avg" and integers and any(OPERATIONS[op].reduces for op in self.op):
            raise UsageError(
                f"--reduce avg has no exact result for {', '.join(integers)}",
                hint=f"choose from {', '.join(FLOAT_DTYPES)}",
            )
