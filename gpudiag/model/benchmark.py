"""What other programs' benchmarks printed: tables of values, what they ran on, and their judgement."""

from dataclasses import dataclass
from typing import ClassVar

from gpudiag.compat import StrEnum
from gpudiag.model.finding import Finding, Outcome
from gpudiag.model.reading import NOT_ASKED, Missing, Reading

BITS_PER_BYTE = 8


class Metric(StrEnum):
    """What the values of a table are: bytes per second, or seconds, or only results of checks."""

    BUSBW = "busbw"  # of a collective, as nccl-tests counts it
    BANDWIDTH = "bandwidth"  # of a copy or of messages, in one direction
    LATENCY = "latency"
    RESULTS = "results"


@dataclass(frozen=True, slots=True)
class Nics:
    """The network cards of one node: how many, and the rate of one in Gb/s."""

    count: int
    gbits_per_second: float

    @property
    def bytes_per_second(self) -> float:
        """What all of them carry in one direction together, by their line rate."""
        return self.count * self.gbits_per_second * 1e9 / BITS_PER_BYTE


@dataclass(frozen=True, slots=True)
class Setup:
    """What a benchmark ran on, as far as its output, the files beside it or the user show.

    `gpu` is NVML's name of the GPUs, `gpus` their number in all, `ranks` that of the ranks. `settings` are
    NCCL's variables that were set. `assumed` has a sentence for each thing that nobody gave and that was
    taken to be so.
    """

    gpu: Reading[str] = NOT_ASKED
    gpus: Reading[int] = NOT_ASKED
    nodes: Reading[int] = NOT_ASKED
    nics: Reading[Nics] = NOT_ASKED
    nccl_version: Reading[str] = NOT_ASKED
    algorithm: Reading[str] = NOT_ASKED  # NCCL's: ring, tree or NVLS, by its settings or its log
    settings: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MeasuredValue:
    """One value, in bytes per second or seconds; of a matrix with its row and column.

    `size_bytes` is that of the message or the buffer. `wrong` counts the wrong elements of the result.
    """

    value: float
    size_bytes: Reading[int] = NOT_ASKED
    wrong: Reading[int] = NOT_ASKED
    in_place: bool = False
    row: int | None = None
    column: int | None = None


@dataclass(frozen=True, slots=True)
class TestResult:
    """What a program reported of one of its own tests: pass, fail, warn or skip, and of which GPU."""

    __test__: ClassVar[bool] = False  # no class of pytest's

    name: str
    status: str
    gpu: int | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class MeasuredTable:
    """One table that a benchmark printed, from `line` of the file on.

    `operation` is the program's own word for what was measured. `complete` is False where more was to come.
    `remarks` are facts of the text that bear on the judgement: `one_rank`, `mixed`, `real_job`, `gpu_memory`
    and so on.
    """

    file: str
    line: int
    tool: str
    version: Reading[str]
    operation: str
    metric: Metric
    values: tuple[MeasuredValue, ...]
    setup: Setup
    complete: bool = True
    out_of_bounds: Reading[int] = NOT_ASKED  # the program's own count of wrong results
    results: tuple[TestResult, ...] = ()
    remarks: tuple[str, ...] = ()

    def largest(self) -> MeasuredValue | None:
        """The value of the largest message, the better placement.

        It is None where there is no value with a size.
        """
        sized = [one for one in self.values if not isinstance(one.size_bytes, Missing)]
        return max(sized, key=_size_and_value, default=None)


def _size_and_value(one: MeasuredValue) -> tuple[int, float]:
    return (0 if isinstance(one.size_bytes, Missing) else one.size_bytes, one.value)


@dataclass(frozen=True, slots=True)
class JudgedTable:
    """A table and the findings about it, worst first."""

    table: MeasuredTable
    outcome: Outcome
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class OutputRead:
    """One file that was given: how many tables are in it, or why it was not read."""

    name: str
    lines: int
    tables: int
    facts: tuple[str, ...] = ()  # what it shows of the machine: GPUs, NCCL's settings
    refused: str | None = None


@dataclass(frozen=True, slots=True)
class Judgement:
    """`gpudiag.judgement/1`: other programs' benchmarks, if each is right for what it ran on, and why."""

    SCHEMA: ClassVar[str] = "gpudiag.judgement/1"

    outcome: Outcome
    files: tuple[OutputRead, ...]
    tables: tuple[JudgedTable, ...]
