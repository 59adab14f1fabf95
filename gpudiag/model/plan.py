"""What an nccl-test, a bandwidth run and a preflight are asked to do: frozen, bounded plans."""

from dataclasses import dataclass
from typing import Any, ClassVar

from gpudiag.errors import UsageError
from gpudiag.model.active import DEVICE_TO_HOST, HOST_TO_DEVICE, MATMUL, MEMORY_COPY, PEER_COPY
from gpudiag.model.finding import Finding, Outcome, Owner
from gpudiag.model.operation import OPERATIONS
from gpudiag.model.option import ALL, MAX_DEADLINE_SECONDS, MIN_DEADLINE_SECONDS, Plan, Preset, option
from gpudiag.units import MIB, format_size, parse_size_bytes

# --- nccl-test

BACKENDS = ("auto", "nccl", "gloo")
FLOAT_DTYPES = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
INTEGER_DTYPES = ("int8", "uint8", "int32", "int64")
DTYPES = (*FLOAT_DTYPES, *INTEGER_DTYPES)
REDUCTIONS = ("sum", "avg", "min", "max")
VERIFY_MODES = ("every", "last", "off")
PLAIN, REGISTERED, SYMMETRIC = "plain", "registered", "symmetric"
BUFFERS = (PLAIN, REGISTERED, SYMMETRIC)

QUICK, STANDARD, BEFORE_TRAINING = "quick", "standard", "before a training"  # names of presets

DEFAULT_CPU_RANKS = 4  # the default of every command
LOOK_SECONDS = 20.0  # for NVML and the host to answer, beside an import of torch

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


def deadline_option(default_seconds: float) -> Any:
    """The field for how long NVML and the host may take to answer, before ranks start."""
    return option(
        default_seconds,
        "--deadline",
        "Longest wait for an answer of NVML and the host.",
        "SECONDS",
        between=(MIN_DEADLINE_SECONDS, MAX_DEADLINE_SECONDS),
    )


def rendezvous_option() -> Any:
    """The field for how long ranks may take to meet."""
    bounds = (1, MAX_TIMEOUT_SECONDS)
    return option(
        120.0,
        "--rendezvous-timeout",
        "Longest wait for the rendezvous of all ranks.",
        "SECONDS",
        between=bounds,
    )


@dataclass(frozen=True, slots=True)
class NcclTestPlan(Plan):
    """One nccl-test run: which collectives, over which sizes, how often, and how strictly verified.

    None stands for "gpudiag decides": the ranks from the GPUs it finds, the largest size from the
    memory, the iterations and warm-ups from the time that one operation takes.

    Raises:
        UsageError: a field is out of its bounds, or two contradict each other.
    """

    PRESETS: ClassVar[tuple[Preset, ...]] = (
        Preset(
            QUICK,
            "all_reduce up to 1 MiB: do all ranks reach each other?",
            {"max_bytes": MIB, "step_factor": 8},
        ),
        Preset(STANDARD, "all_reduce at every size: the whole curve", {}),
        Preset(
            BEFORE_TRAINING,
            "what DDP and FSDP call, in bfloat16, from 1 MiB on",
            {"op": ("all_reduce", "all_gather", "reduce_scatter"), "dtype": ("bfloat16",), "min_bytes": MIB},
        ),
    )

    backend: str = option(
        "auto",
        "--backend",
        f"{', '.join(BACKENDS)}; auto takes gloo only on a machine without a"
        " trace of a GPU, and then exits 3.",
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
        2, "--step-factor", "Factor from one size to the next.", "N", between=(2, MAX_STEP_FACTOR)
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
        "Untimed iterations per size.",
        "N",
        between=(0, MAX_WARMUP),
        default_words="2 to 5, by time",
    )
    unaligned: bool = option(False, "--unaligned", "Start buffers one element after an aligned address.")
    graph: bool = option(False, "--graph", "Replay each timed operation from a CUDA graph; GPUs only.")
    buffers: str = option(
        PLAIN,
        "--buffers",
        f"{', '.join(BUFFERS)}: memory that NCCL allocates and knows beforehand; GPUs only.",
        "KIND",
        choices=BUFFERS,
        what="a kind of buffers",
    )
    verify: str = option(
        "every",
        "--verify",
        f"Which timed buffers to verify: {', '.join(VERIFY_MODES)}.",
        "WHEN",
        choices=VERIFY_MODES,
        what="a way to verify",
    )
    inject: tuple[str, ...] = option(
        (),
        "--inject",
        "Make a rank misbehave at a timed iteration or in a stage: kill:2@5, stop:1@init, skip:0@3, "
        "mismatch:1@3:size, oom:2@warmup, bitflip:1@3, slow:3:20; with --localise slow:2-5:20.",
        "FAULT",
        is_repeated=True,
    )
    localise: bool = option(
        False,
        "--localise",
        "After that, find the slow or lossy node, rail or link: pairs of nodes exchange data."
        " Needs four nodes; on one machine each rank acts as a node.",
    )
    timeout_seconds: float | None = timeout_option(
        "Limit of the whole run; a stop that ends within it is a warning."
    )
    rendezvous_timeout_seconds: float = rendezvous_option()
    deadline_seconds: float = deadline_option(LOOK_SECONDS)

    def __post_init__(self) -> None:
        """Refuse a plan that cannot be run, in one sentence."""
        self.require_options()
        self._require_average()
        if self.max_bytes is not None and self.min_bytes > self.max_bytes:
            raise UsageError(
                f"--min-bytes {self.min_bytes} is more than --max-bytes {self.max_bytes}",
                hint="swap them, or leave out one",
            )
        if self.inject and self.verify != "every":
            raise UsageError(
                f"--inject needs --verify every, not {self.verify}",
                hint="leave out --verify: --inject implies it",
            )

    def _require_average(self) -> None:
        integers = [dtype for dtype in self.dtype if dtype in INTEGER_DTYPES]
        if self.reduce == "avg" and integers and any(OPERATIONS[op].reduces for op in self.op):
            raise UsageError(
                f"--reduce avg has no exact result for {', '.join(integers)}",
                hint=f"choose from {', '.join(FLOAT_DTYPES)}",
            )


# --- bandwidth

# In the order in which they run.
BANDWIDTH_TESTS = (MEMORY_COPY, HOST_TO_DEVICE, DEVICE_TO_HOST, MATMUL, PEER_COPY)


@dataclass(frozen=True, slots=True)
class BandwidthPlan(Plan):
    """One bandwidth run: which tests, and whether GPUs that others use are tested too.

    No named test means all that this machine can run.

    Raises:
        UsageError: a test is unknown, or named twice.
    """

    PRESETS: ClassVar[tuple[Preset, ...]] = (
        Preset(
            QUICK,
            "copies within a GPU and to the host",
            {"test": (MEMORY_COPY, HOST_TO_DEVICE, DEVICE_TO_HOST)},
        ),
        Preset(STANDARD, "all that this machine can run, matrix products and copies between GPUs too", {}),
    )

    test: tuple[str, ...] = option(
        (),
        "--test",
        f"{', '.join(BANDWIDTH_TESTS)} or all.",
        "NAME,...",
        choices=BANDWIDTH_TESTS,
        what="a bandwidth test",
        all_means=(),
        default_words="all that this machine can run",
    )
    force: bool = option(False, "--force", "Test also GPUs that others use.")
    deadline_seconds: float = deadline_option(5.0)

    def __post_init__(self) -> None:
        """Refuse a plan that cannot be run, in one sentence."""
        self.require_options()


# --- preflight

LEVELS = ("instant", "quick", "standard", "long", "acceptance")
_LEVELS_WITH_LOAD = ("long", "acceptance")
# Whose FAIL fails the gate: anyone's; any that keeps jobs off this machine; that of some owners.
FAIL_ON = ("any", "machine", "host", "hardware")
_FAILING_OWNERS = {
    "host": frozenset((Owner.HARDWARE, Owner.HOST)),
    "hardware": frozenset((Owner.HARDWARE,)),
}
MAX_EXPECTED_GPUS = 1024
MAX_VERSION_CHARACTERS = 64
MIN_DURATION_SECONDS, MAX_DURATION_SECONDS = 10.0, 3600.0


def is_driver_version(text: str) -> bool:
    """Whether the text is a driver version or its beginning: numbers with points between them."""
    return len(text) <= MAX_VERSION_CHARACTERS and all(part.isdecimal() for part in text.split("."))


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """How much memory of a GPU is to be free: a share of what is not the driver's own, or bytes."""

    share: float = 0.0
    size_bytes: int = 0

    @property
    def is_none(self) -> bool:
        """Whether no memory at all need be free."""
        return self.share == self.size_bytes == 0

    def of(self, total_bytes: int) -> int:
        """The bytes that are to be free of so many."""
        return self.size_bytes or round(self.share * total_bytes)

    def __str__(self) -> str:
        """As people write it: `90 %`, `70 GiB`."""
        return format_size(self.size_bytes) if self.size_bytes else f"{100 * self.share:g} %"


def parse_free_memory(text: str) -> FreeMemory:
    """The memory that is to be free, of `90%`, `70G` or a number of bytes; `0` asks for none.

    Less than 1 MiB, but 0, is no amount: `90` and `70` lack their unit, and would let every GPU pass.

    Raises:
        UsageError: it is none of these; the message names --min-free-memory.
    """
    words = text.strip()
    try:
        size = None if words.endswith("%") else parse_size_bytes(words)
        if size == 0 or (size is not None and size >= MIB):
            return FreeMemory(size_bytes=size)
        percent = float(words[:-1]) if size is None else -1.0
    except (UsageError, ValueError):
        percent = -1.0
    if not 0 <= percent <= 100:  # false for nan too
        shown = text[:MAX_VERSION_CHARACTERS]
        hint = "write it with its unit: 90% of each GPU, or 70G"
        raise UsageError(f"--min-free-memory {shown} is not an amount of memory", hint=hint)
    return FreeMemory(share=percent / 100)


@dataclass(frozen=True, slots=True)
class PreflightPlan(Plan):
    """One preflight: how thorough, which checks, what is expected, and what counts as a failure.

    `expect_gpus` is how many GPUs there are to be; `at_least_gpus` is how many the scheduler lists: the node
    may have one more, for its display. `only` and `skip` are names of checks, or their first word for all
    that begin with it (`pcie`). `min_free_memory` is what must be free of each GPU that the job is to use.
    `duration_seconds` is how long the load of levels long and acceptance lasts; None: as long as the device
    needs.

    Raises:
        UsageError: a field is out of its bounds, or two contradict each other.
    """

    PRESETS: ClassVar[tuple[Preset, ...]] = (
        Preset(
            QUICK, "45 s, and 4 s for each GPU: readings, an all-reduce, a short training", {"level": "quick"}
        ),
        Preset(STANDARD, "minutes: bandwidth, matrix products and every strategy too", {"level": "standard"}),
        Preset(
            BEFORE_TRAINING,
            "standard, and FAIL only for what keeps jobs off this machine",
            {"level": "standard", "fail_on": "machine"},
        ),
    )

    level: str = option(
        "quick",
        "--level",
        "instant (< 2 s, readings only), quick (45 s, and 4 s for each GPU), standard (minutes),"
        " long, acceptance (20 min on 8 GPUs).",
        "NAME",
        choices=LEVELS,
        what="a level",
    )
    only: tuple[str, ...] = option(
        (), "--only", "Run only these checks, or topics such as pcie; --list names them.", "NAME,..."
    )
    skip: tuple[str, ...] = option((), "--skip", "Leave out these checks or topics.", "NAME,...")
    expect_gpus: int | None = option(
        None, "--expect-gpus", "Expect exactly N GPUs.", "N", between=(0, MAX_EXPECTED_GPUS)
    )
    at_least_gpus: int | None = option(
        None,
        "--at-least-gpus",
        "Expect at least N GPUs (Slurm's Gres).",
        "N",
        between=(0, MAX_EXPECTED_GPUS),
    )
    expect_driver: str | None = option(
        None, "--expect-driver", "Expect this driver: 580.105.08, or a branch such as 580.", "VERSION"
    )
    fail_on: str = option(
        "any",
        "--fail-on",
        "Exit 1 on FAIL of: any finding; machine: findings that keep jobs off it; host,"
        " hardware: findings that these must repair.",
        "WHAT",
        choices=FAIL_ON,
        what="a word for --fail-on",
    )
    strict: bool = option(
        False, "--strict", "Exit 1 on WARN too, and 3 if a check could not read what it needs."
    )
    min_free_memory: str | None = option(
        None,
        "--min-free-memory",
        "FAIL if a GPU of the job has less free memory: a percentage such as 90%,"
        " or a size such as 70G; 0 never warns.",
        "AMOUNT",
        default_words="WARN below 90%",
    )
    force: bool = option(False, "--force", "Test also GPUs that others use.")
    duration_seconds: float | None = option(
        None,
        "--duration",
        "Duration of the load at levels long and acceptance.",
        "SECONDS",
        between=(MIN_DURATION_SECONDS, MAX_DURATION_SECONDS),
        default_words="900 (acceptance: 600) on GPUs, 60 on the CPU",
    )

    def __post_init__(self) -> None:
        """Refuse a plan that cannot be run, in one sentence."""
        self.require_options()
        if self.expect_gpus is not None and self.at_least_gpus is not None:
            raise UsageError("--expect-gpus and --at-least-gpus contradict each other", hint="leave one out")
        if self.expect_driver is not None and not is_driver_version(self.expect_driver):
            raise UsageError(
                f"--expect-driver {self.expect_driver[:MAX_VERSION_CHARACTERS]} is not a driver version",
                hint="write it as 580.105.08, or 580 for the whole branch",
            )
        if self.min_free_memory is not None:
            parse_free_memory(self.min_free_memory)
        both = [name for name in self.only if name in self.skip]
        if both:
            raise UsageError(f"--only and --skip both name {both[0]}", hint="leave it out of one of the two")
        if self.strict and self.fail_on != "any":
            raise UsageError(
                f"--strict fails on every finding, --fail-on {self.fail_on} only on some",
                hint="leave one out",
            )
        if self.force and self.level == "instant":
            raise UsageError(
                "--force allows tests on GPUs in use, and --level instant runs no test",
                hint="leave it out, or ask for --level quick",
            )
        if self.duration_seconds is not None and self.level not in _LEVELS_WITH_LOAD:
            raise UsageError(
                f"--duration is for the load of level long, and --level {self.level} has no load",
                hint="ask for --level long",
            )

    @property
    def least_free_memory(self) -> FreeMemory | None:
        """What --min-free-memory asks for; None where it was not given."""
        return None if self.min_free_memory is None else parse_free_memory(self.min_free_memory)

    def fails_on(self, finding: Finding) -> bool:
        """Whether that finding fails the gate."""
        if finding.outcome is not Outcome.FAIL:
            return False
        if self.fail_on == "machine":
            return finding.blocks_jobs
        return self.fail_on == "any" or finding.owner in _FAILING_OWNERS[self.fail_on]
