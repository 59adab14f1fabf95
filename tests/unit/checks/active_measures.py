"""Measurements of active tests for tests: eight GPUs, or four CPU ranks, that measured what they should."""

from dataclasses import replace
from typing import Any

from gpudiag.model.active import (
    DETERMINISM,
    DEVICE_TO_HOST,
    HOST_TO_DEVICE,
    MATMUL,
    MEMORY_COPY,
    MEMORY_PATTERNS,
    PEER_COPY,
    SUSTAINED,
    ActiveMeasurement,
    BandwidthResult,
    ComputeResult,
    DeterminismResult,
    PatternResult,
    SustainedPoint,
    SustainedResult,
    TelemetryPoint,
)
from gpudiag.model.context import Context
from gpudiag.model.device import Snapshot
from gpudiag.model.measure import RankReport
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.model.report import Measures
from tests.unit.model.nouns import make_device, make_snapshot

ACTIVE_TESTS = (
    *(MEMORY_COPY, HOST_TO_DEVICE, DEVICE_TO_HOST, MATMUL, PEER_COPY, DETERMINISM, MEMORY_PATTERNS),
    SUSTAINED,
)

ON_CPU = Missing(MissingReason.NOT_SUPPORTED, "the rank works on the CPU")
GB = 1e9
MEMORY_SPEED = 3000 * GB
LINK_SPEED = 55 * GB
PEER_SPEED = 370 * GB
MATMUL_SPEED = 700e12


def gpu_snapshot(count: int = 8, **facts: Any) -> Snapshot:
    """A machine of identical GPUs that say what their memory and links can do."""
    values = {
        "name": "NVIDIA H100 80GB HBM3",
        "memory_clock_max_mhz": 2619,
        "memory_bus_width_bits": 5120,
        **facts,
    }
    return make_snapshot(devices=tuple(replace(make_device(place), **values) for place in range(count)))


def measure_gpus(snapshot: Snapshot, **changes: Any) -> ActiveMeasurement:
    """What every GPU of the snapshot measures when it is in order."""
    uuids = [device.id.uuid for device in snapshot.devices]
    ranks = range(len(uuids))
    copies = [
        _copy(test, rank, uuids[rank], speed)
        for test, speed in (
            (MEMORY_COPY, MEMORY_SPEED),
            (HOST_TO_DEVICE, LINK_SPEED),
            (DEVICE_TO_HOST, LINK_SPEED),
        )
        for rank in ranks
    ]
    copies += [
        replace(
            _copy(PEER_COPY, rank, uuids[rank], PEER_SPEED), peer=peer, peer_uuid=uuids[peer], direct=True
        )
        for rank in ranks
        for peer in ranks
        if peer != rank
    ]
    values = {
        "device_kind": "cuda",
        "bandwidth": tuple(copies),
        "compute": tuple(
            ComputeResult(rank, uuids[rank], "bfloat16", 8192, 20, 1e-3, 1e-3, MATMUL_SPEED) for rank in ranks
        ),
        "determinism": tuple(_determinism(rank, uuids[rank], "H100") for rank in ranks),
        "patterns": tuple(PatternResult(rank, uuids[rank], 2**36, 2**36, ("zeros",), 0) for rank in ranks),
        "sustained": tuple(_sustained(rank, uuids[rank]) for rank in ranks),
        "telemetry": tuple(
            TelemetryPoint(float(second), uuid, 1980, 60, 650.0, 5, 16, ())
            for second in range(3)
            for uuid in uuids
        ),
    }
    return _measurement(len(uuids), **{**values, **changes})


def measure_cpu(world_size: int = 4, **changes: Any) -> ActiveMeasurement:
    """What the ranks of a machine without a GPU measure."""
    values = {
        "device_kind": "cpu",
        "bandwidth": tuple(_copy(MEMORY_COPY, rank, ON_CPU, 10 * GB) for rank in range(world_size)),
        "compute": (),
        "determinism": tuple(_determinism(rank, ON_CPU, "cpu") for rank in range(world_size)),
        "patterns": tuple(
            PatternResult(rank, ON_CPU, 2**24, 2**24, ("zeros",), 0) for rank in range(world_size)
        ),
        "sustained": (),
        "telemetry": (),
        "tests": (MEMORY_COPY, DETERMINISM),
        "done": (MEMORY_COPY, DETERMINISM),
    }
    return _measurement(world_size, **{**values, **changes})


def judged_by(measurement: Any, snapshot: Snapshot | None = None, **values: Any) -> Context:
    """The context of checks that see that measurement."""
    return Context(snapshot or make_snapshot(), Measures(active=measurement), **values)


def with_one(results: tuple[Any, ...], place: int, **changes: Any) -> tuple[Any, ...]:
    """The results with one of them changed."""
    return tuple(replace(one, **changes) if number == place else one for number, one in enumerate(results))


def _measurement(world_size: int, **values: Any) -> ActiveMeasurement:
    ranks = tuple(RankReport(rank, rank, "a1", 100 + rank, "teardown", 0) for rank in range(world_size))
    defaults = {"world_size": world_size, "host": "a1", "torch_version": "2.13.0", "tests": ACTIVE_TESTS} | {
        "done": ACTIVE_TESTS,
        "ranks": ranks,
        "incidents": (),
        "untested": (),
        "seconds": 60.0,
    }
    return ActiveMeasurement(**{**defaults, **values})


def _copy(test: str, rank: int, uuid: Any, speed: float) -> BandwidthResult:
    return BandwidthResult(test, rank, uuid, 2**28, 20, 1e-3, 1e-3, speed, 0)


def _determinism(rank: int, uuid: Any, name: str) -> DeterminismResult:
    return DeterminismResult(rank, uuid, name, "matmul", "float32", 10, "0123456789abcdef", 0)


def _sustained(rank: int, uuid: Any) -> SustainedResult:
    points = tuple(SustainedPoint(float(second), MATMUL_SPEED) for second in range(0, 600, 2))
    return SustainedResult(rank, uuid, "bfloat16", 600.0, points)
