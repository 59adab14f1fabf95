"""What active tests measured: speed of memory and links, arithmetic, repeatability. No verdicts.

Times are seconds on the rank, rates are bytes per second (B/s) or floating-point operations per
second (FLOP/s). `rank` is the rank that measured; `device_uuid` is missing where it works on the CPU.
"""

from gpudiag.model.codec import noun
from gpudiag.model.measure import Incident, RankReport
from gpudiag.model.reading import NOT_ASKED, Reading

# The active tests in the order in which they run, cheapest and least straining first.
MEMORY_COPY = "memory_copy"
HOST_TO_DEVICE = "host_to_device"
DEVICE_TO_HOST = "device_to_host"
MATMUL = "matmul"
FLOAT8, FLOAT4 = "float8", "float4"  # of products with scales
SCALED_DTYPES = (FLOAT8, FLOAT4)
PEER_COPY = "peer_copy"
DETERMINISM = "determinism"
MEMORY_PATTERNS = "memory_patterns"
SUSTAINED = "sustained"
# How a reason begins where a test left out a GPU, or all of them, because others use it: no fault, and no
# pass either.
NOT_TESTED = "not tested"
COPIES = (MEMORY_COPY, HOST_TO_DEVICE, DEVICE_TO_HOST, PEER_COPY)


@noun
class ActivePlan:
    """What every rank receives: the tests, the kind of device, and the sizes."""

    tests: tuple[str, ...]
    device_kind: str  # cpu or cuda
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    repeat_seconds: float = 1.0  # for each chain and dtype of the determinism test
    pattern_bytes: int | None = None  # of memory to test per rank; None: most of what is free on the GPU
    sustained_seconds: float = 600.0
    numa_nodes: tuple[int | None, ...] = ()  # of each local rank's GPU; None where it is not known
    scaled_dtypes: tuple[str, ...] = ()  # of matrix products: float8, float4
    repeat_dtypes: tuple[str, ...] = ()  # of the determinism test; none: those of `dtypes`


@noun
class BandwidthResult:
    """One copy, timed: bytes moved per second at the median time of its iterations.

    `memory_copy` reads and writes each byte, and both count. `concurrent`: every rank copied at once.
    `peer` is the rank whose GPU it was copied to. `wrong_bytes` were found by comparing the copy.
    """

    test: str
    rank: int
    device_uuid: Reading[str]
    size_bytes: int
    iterations: int
    time_p50_seconds: float
    time_best_seconds: float
    bytes_per_second: float
    wrong_bytes: int
    concurrent: bool = False
    peer: Reading[int] = NOT_ASKED
    peer_uuid: Reading[str] = NOT_ASKED
    direct: Reading[bool] = NOT_ASKED  # from GPU to GPU, and not through the host's memory
    numa_node: Reading[int] = NOT_ASKED  # whose processors the rank was bound to, before it pinned memory
    began_seconds: Reading[float] = NOT_ASKED  # as in ComputeResult
    ended_seconds: Reading[float] = NOT_ASKED


@noun
class ComputeResult:
    """Square matrix products of one dtype, timed: 2 n^3 operations each, on random data.

    The median is of bursts without a pause between them, from the moment when the GPU has been under load for
    some time: what it sustains. The best is of all bursts, those before that too.
    `began_seconds` and `ended_seconds` are on the clock of the telemetry's `at_seconds`.
    """

    rank: int
    device_uuid: Reading[str]
    dtype: str
    size: int  # n
    iterations: int
    time_p50_seconds: float
    time_best_seconds: float
    flops_per_second: float
    began_seconds: Reading[float] = NOT_ASKED
    ended_seconds: Reading[float] = NOT_ASKED


@noun
class DeterminismResult:
    """One chain of operations from one seed, repeated: the digest it gave most often, and how many others.

    The same seed on every rank: identical devices must give identical digests.
    """

    rank: int
    device_uuid: Reading[str]
    device_name: str
    chain: str  # matmul, attention, reduction
    dtype: str
    repeats: int
    digest: str
    deviating: int  # repeats that gave another digest


@noun
class PatternResult:
    """Patterns written to memory and read back: how much was tested, and what came back wrong."""

    rank: int
    device_uuid: Reading[str]
    wanted_bytes: int
    tested_bytes: int
    patterns: tuple[str, ...]
    wrong_words: int  # of 8 bytes
    first_pattern: Reading[str] = NOT_ASKED
    first_offset_bytes: Reading[int] = NOT_ASKED  # within the memory that was tested
    flipped_bits: Reading[str] = NOT_ASKED  # hexadecimal, all that were seen


@noun
class SustainedPoint:
    """Speed at one moment of a sustained load, `at_seconds` after it began."""

    at_seconds: float
    flops_per_second: float


@noun
class SustainedResult:
    """Matrix products without a pause, for `seconds`."""

    rank: int
    device_uuid: Reading[str]
    dtype: str
    seconds: float
    points: tuple[SustainedPoint, ...]


@noun
class TelemetryPoint:
    """The readings of one GPU's sensors while a test ran, `at_seconds` after the ranks were started."""

    at_seconds: float
    device_uuid: str
    sm_clock_mhz: Reading[int]
    temperature_celsius: Reading[int]
    power_draw_watts: Reading[float]
    pcie_generation: Reading[int]
    pcie_width: Reading[int]
    clocks_event_reasons: Reading[tuple[str, ...]]


@noun
class Untested:
    """A GPU that no active test ran on, and why."""

    device_uuid: Reading[str]
    name: str  # GPU 5 (5d:00.0)
    reason: str
    in_use: bool = False  # nothing else keeps it from being tested
    full: bool = False  # others leave too little of its memory for a rank


@noun
class NotTested:
    """A test that a rank left out because its GPU, or its host, has too little free memory for it."""

    test: str
    rank: int
    device_uuid: Reading[str]
    reason: str
    needed_bytes: int
    free_bytes: int


@noun
class AbsentProduct:
    """Matrix products of a dtype that a device cannot compute, or the torch of its rank."""

    dtype: str
    rank: int
    device_uuid: Reading[str]
    reason: str


@noun
class DiskResult:
    """One file written where jobs write, forced to the disk, and read back: speeds, and what differed.

    `direct`: it was read past the page cache; where the file system refuses that, the read may be one of
    memory. `failure` is why the file could not be written or read whole; the speeds are missing then, with
    the reason not_supported where the place is why, and with another where nobody knows what the disk would
    do. `is_fault`: the system reports an error of the device, and not that the place is full, read-only or of
    another user.
    """

    path: str
    size_bytes: int
    write_bytes_per_second: Reading[float]
    read_bytes_per_second: Reading[float]
    wrong_bytes: int = 0
    direct: bool = False
    failure: str | None = None
    is_fault: bool = False


@noun
class ActiveMeasurement:
    """Everything that the active tests of one run measured, and what happened to their ranks."""

    device_kind: str
    world_size: int
    host: str
    torch_version: Reading[str]
    tests: tuple[str, ...]  # that were planned
    done: tuple[str, ...]  # that every rank finished
    bandwidth: tuple[BandwidthResult, ...]
    compute: tuple[ComputeResult, ...]
    determinism: tuple[DeterminismResult, ...]
    patterns: tuple[PatternResult, ...]
    sustained: tuple[SustainedResult, ...]
    telemetry: tuple[TelemetryPoint, ...]
    ranks: tuple[RankReport, ...]
    incidents: tuple[Incident, ...]
    untested: tuple[Untested, ...]
    seconds: float
    timed_out: bool = False
    not_tested: tuple[NotTested, ...] = ()
    absent_products: tuple[AbsentProduct, ...] = ()
    shared: tuple[Untested, ...] = ()  # tested, though others used them: what they do costs speed


def metric_of(result: BandwidthResult | ComputeResult) -> str:
    """The metric under which a speed is stored: only equal tests are compared."""
    if isinstance(result, ComputeResult):
        return f"{MATMUL}.{result.dtype}.{result.size}"
    name = f"{result.test}{'.concurrent' if result.concurrent else ''}"
    return _to_peer(name, result.peer_uuid) if isinstance(result.peer_uuid, str) else name


def peer_metric(peer_uuid: str) -> str:
    """The metric under which a copy to that GPU, with no other at the same time, is stored."""
    return _to_peer(PEER_COPY, peer_uuid)


def _to_peer(name: str, peer_uuid: str) -> str:
    return f"{name}.to.{peer_uuid}"
