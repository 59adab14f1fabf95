"""Measurements for tests: a small sound run, and what can go wrong with it."""

from dataclasses import replace
from typing import Any

from gpudiag.model.evidence import Evidence
from gpudiag.model.measure import CollectiveMeasurement, CollectiveResult, Incident, IncidentKind, RankReport
from gpudiag.model.reading import Missing, MissingReason


def make_result(size_bytes: int = 1024, **values: Any) -> CollectiveResult:
    """A verified all_reduce of that size."""
    sound = CollectiveResult(
        op="all_reduce",
        reduce="sum",
        dtype="float32",
        size_bytes=size_bytes,
        elements=size_bytes // 4,
        iterations=20,
        time_p50_seconds=1e-4,
        time_p99_seconds=2e-4,
        time_average_seconds=1.1e-4,
        algbw_bytes_per_second=size_bytes / 1e-4,
        busbw_bytes_per_second=1.5 * size_bytes / 1e-4,
        verified=True,
        verified_iterations=20,
        wrong_elements=0,
    )
    return replace(sound, **values)


def make_measurement(*results: CollectiveResult, **values: Any) -> CollectiveMeasurement:
    """A run on four gloo ranks that went as planned, unless `values` say otherwise."""
    results = results or (make_result(8), make_result(1024))
    sound = CollectiveMeasurement(
        backend="gloo",
        world_size=4,
        launcher="spawn",
        host="a1",
        torch_version="2.13.0+cpu",
        nccl_version=Missing(MissingReason.SOURCE_ABSENT, "this build of torch has no NCCL"),
        device_kind="cpu",
        results=results,
        ranks=tuple(RankReport(rank, rank, "a1", 4240 + rank, "teardown", 0) for rank in range(4)),
        incidents=(),
        injected=(),
        sizes_planned=len(results),
        seconds=2.5,
    )
    return replace(sound, **values)


def make_incident(kind: IncidentKind, rank: int = 2, **values: Any) -> Incident:
    """Something that happened to a rank while it measured."""
    evidence = values.pop("evidence", ())
    return Incident(
        kind, rank, values.pop("host", "a1"), values.pop("stage", "measure"), 1.5, evidence, **values
    )


def make_corruption(rank: int = 1, **facts: Any) -> Incident:
    """Wrong data that a rank saw after an all_reduce."""
    known = {
        "op": "all_reduce",
        "dtype": "float32",
        "size_bytes": 1024,
        "iteration": 3,
        "wrong_elements": 1,
        "first_offset": 128,
        "last_offset": 128,
        "run_length": 1,
        "xor_mask": "0x1",
        "diagnosis": "flipped",
        **facts,
    }
    evidence = tuple(Evidence(name, value) for name, value in known.items())
    return Incident(IncidentKind.CORRUPTED, rank, "a1", "measure", 1.0, evidence)
