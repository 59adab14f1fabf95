"""The all-reduce and the training of a preflight: short, verified, where tests may run."""

from dataclasses import replace

from gpudiag.collectives.localise import NODES_AT_LEAST
from gpudiag.model.device import Snapshot
from gpudiag.model.host_state import HostState
from gpudiag.model.measure import CollectiveMeasurement
from gpudiag.model.number_ranges import count_of
from gpudiag.model.operation import OPERATIONS
from gpudiag.model.plan import NcclTestPlan
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.model.training import STRATEGIES, StrategyMeasurement, TrainingPlan
from gpudiag.ranks.diagnosis.view import ViewListener
from gpudiag.reference.reading_names import describe_missing
from gpudiag.runs.fork_servers import ForkServers
from gpudiag.runs.nccl_test import measure_collectives
from gpudiag.runs.placement import Placement
from gpudiag.runs.train import measure_strategies
from gpudiag.units import GIB, KIB, MIB

_CPU_MAX_BYTES = MIB
_GPU_MAX_BYTES = 256 * MIB
_OPERATIONS_MIN_BYTES, _OPERATIONS_STEP = 4 * KIB, 16  # six sizes
_OPERATIONS_MAX_BYTES = 4 * GIB  # from where on published figures hold; less where memory is
_CARDS_MAX_BYTES = 64 * MIB
_OPERATION_SECONDS = 30.0  # for each collective
_GPU_MEMORY_SHARE = 0.1  # of the fullest GPU's free memory, for each of three buffers
_CPU_SECONDS = 25.0  # what level quick has left after the look at the machine
# NCCL's start was seen to take over 60 s on 8 B200 (NVIDIA/nccl issue 1646); 2.3 to 3.8 s is usual.
_GPU_BASE_SECONDS = 60.0
_GPU_SECONDS = 5.0  # for each

_QUICK = "quick"
_STEPS = 4
_CPU_QUICK_SECONDS = 15.0  # of the 30 that level quick has
_SECONDS = 60.0  # for each strategy; the first import of DeepSpeed or TensorFlow is the slow part


def describe_collective_cost(place: Placement) -> str:
    """What the all-reduce costs, in one sentence for the user before it starts."""
    if place.device_kind == "cuda":
        return (
            f"all-reduce on {place.world_size} GPUs with NCCL: about 10 s, up to 0.8 GiB of each GPU's memory"
        )
    return f"all-reduce on {place.world_size} CPU ranks with gloo: about 5 s"


def collective_limit(place: Placement) -> float:
    """How many seconds the all-reduce may take, by the number of GPUs."""
    on_gpu = place.device_kind == "cuda"
    return _GPU_BASE_SECONDS + _GPU_SECONDS * place.world_size if on_gpu else _CPU_SECONDS


def measure_collective(
    place: Placement,
    python: str | None,
    servers: ForkServers | None = None,
    on_views: ViewListener | None = None,
) -> CollectiveMeasurement:
    """The verified all-reduce, on ranks that a server forks.

    Raises:
        UsageError: torch is not installed for that interpreter.
        LaunchError: the ranks could not be started.
    """
    on_gpu = place.device_kind == "cuda"
    max_bytes = _gpu_bytes(place) if on_gpu else _CPU_MAX_BYTES
    plan = NcclTestPlan(
        backend=place.backend,
        nproc=place.world_size,
        max_bytes=max_bytes,
        step_factor=8,
        iterations=5,
        warmup=1,
        timeout_seconds=collective_limit(place),
        rendezvous_timeout_seconds=collective_limit(place),
    )
    return measure_collectives(plan, replace(place, max_bytes=max_bytes), python, servers, on_views)


def describe_operations_cost(place: Placement) -> str:
    """What all collectives cost, in one sentence for the user before they start."""
    where = "GPUs with NCCL" if place.device_kind == "cuda" else "CPU ranks with gloo"
    seconds = 60 if place.device_kind == "cuda" else 30
    return f"all {len(OPERATIONS)} collectives on {place.world_size} {where}: about {seconds} s"


def operations_limit(place: Placement) -> float:
    """How many seconds all collectives may take."""
    return collective_limit(place) + _OPERATION_SECONDS * len(OPERATIONS)


def measure_operations(
    place: Placement,
    python: str | None,
    servers: ForkServers | None = None,
    on_views: ViewListener | None = None,
) -> CollectiveMeasurement:
    """Every collective, verified, up to the size of its plateau, on ranks that a server forks.

    Raises:
        UsageError: torch is not installed for that interpreter.
        LaunchError: the ranks could not be started.
    """
    on_gpu = place.device_kind == "cuda"
    max_bytes = _gpu_bytes(place, _OPERATIONS_MAX_BYTES) if on_gpu else _CPU_MAX_BYTES
    plan = NcclTestPlan(
        backend=place.backend,
        nproc=place.world_size,
        op=tuple(OPERATIONS),
        min_bytes=_OPERATIONS_MIN_BYTES,
        max_bytes=max_bytes,
        step_factor=_OPERATIONS_STEP,
        iterations=5,
        warmup=1,
        timeout_seconds=operations_limit(place),
        rendezvous_timeout_seconds=collective_limit(place),
    )
    return measure_collectives(plan, replace(place, max_bytes=max_bytes), python, servers, on_views)


# So NCCL takes the network between two GPUs of one machine (its variables, NCCL user guide).
_BY_CARDS = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}


def why_no_card_pairs(place: Placement, snapshot: Snapshot) -> Missing | None:
    """Why the network cards of this machine are not measured in pairs; None if they are."""
    if place.device_kind != "cuda":
        return Missing(MissingReason.NOT_SUPPORTED, "ranks on CPUs use no network card between them")
    if place.world_size < NODES_AT_LEAST:
        words = (
            f"{NODES_AT_LEAST} GPUs are needed to distinguish a bad card from its partners, and"
            f" {place.world_size} can be tested"
        )
        return Missing(MissingReason.NOT_SUPPORTED, words)
    state = snapshot.machine.state
    ports = state.infiniband_ports if isinstance(state, HostState) else state
    if isinstance(ports, Missing):
        absent = ports.reason in (MissingReason.SOURCE_ABSENT, MissingReason.NOT_SUPPORTED)
        words = "this machine has no RDMA card" if absent else f"RDMA ports: {describe_missing(ports)}"
        return Missing(MissingReason.NOT_SUPPORTED if absent else ports.reason, words)
    active = [port for port in ports if port.state == "ACTIVE"]
    if len({port.device for port in active}) < 2:
        words = f"{count_of(len(active), 'RDMA port')} of {len(ports)} active, and a pair needs two cards"
        return Missing(MissingReason.NOT_SUPPORTED, words)
    return None


def describe_card_pairs_cost(place: Placement) -> str:
    """What the pairs of network cards cost, in one sentence for the user before they start."""
    return (
        f"each two of {place.world_size} GPUs by their network cards, without"
        " NVLink and shared memory: about 30 s"
    )


def measure_card_pairs(
    place: Placement,
    python: str | None,
    servers: ForkServers | None = None,
    on_views: ViewListener | None = None,
) -> CollectiveMeasurement:
    """What each two GPUs exchanged by their network cards: NCCL is kept from NVLink, PCIe and shared memory.

    Raises:
        UsageError: torch is not installed for that interpreter.
        LaunchError: the ranks could not be started.
    """
    max_bytes = _gpu_bytes(place, _CARDS_MAX_BYTES)
    plan = NcclTestPlan(
        backend=place.backend,
        nproc=place.world_size,
        op=("send_recv",),
        min_bytes=max_bytes,
        max_bytes=max_bytes,
        iterations=5,
        warmup=1,
        localise=True,
        timeout_seconds=operations_limit(place),
        rendezvous_timeout_seconds=collective_limit(place),
    )
    by_cards = replace(place, max_bytes=max_bytes, variables={**place.variables, **_BY_CARDS})
    return measure_collectives(plan, by_cards, python, servers, on_views)


def _gpu_bytes(place: Placement, most_bytes: int = _GPU_MAX_BYTES) -> int:
    free = [
        device.memory_free_bytes
        for device in place.devices
        if not isinstance(device.memory_free_bytes, Missing)
    ]
    return min([most_bytes, *(max(MIB, int(size * _GPU_MEMORY_SHARE)) for size in free)])


def describe_training_cost(place: Placement, level: str) -> str:
    """What the training costs, in one sentence for the user before it starts."""
    where = f"{place.world_size} GPUs" if place.device_kind == "cuda" else f"{place.world_size} CPU ranks"
    if level == _QUICK:
        seconds = 10 if place.device_kind == "cuda" else 5  # with contexts, and NCCL's start
        return f"{_STEPS} verified steps of DDP on {where}: about {seconds} s"
    return f"{_STEPS} verified steps on {where} under each strategy that is installed: about 5 s each"


def training_limit(place: Placement, level: str) -> float:
    """How many seconds one strategy may take: with GPUs, by how many there are, at every level."""
    if place.device_kind == "cuda":
        return _SECONDS + _GPU_SECONDS * place.world_size
    return _CPU_QUICK_SECONDS if level == _QUICK else _SECONDS


def measure_training(
    place: Placement,
    level: str,
    python: str | None,
    servers: ForkServers | None = None,
    on_views: ViewListener | None = None,
) -> tuple[StrategyMeasurement, ...]:
    """What the ranks of each strategy reported; at level quick, of DDP alone.

    Raises:
        UsageError: torch is not installed for that interpreter.
        LaunchError: the ranks could not be started.
    """
    quick = level == _QUICK
    plan = TrainingPlan(
        strategy=("ddp",) if quick else STRATEGIES,
        steps=_STEPS,
        timeout_seconds=training_limit(place, level),
        rendezvous_timeout_seconds=training_limit(place, level),
    )
    return measure_strategies(
        plan, place, python=python, servers=servers, fresh_groups=not quick, on_views=on_views
    )
