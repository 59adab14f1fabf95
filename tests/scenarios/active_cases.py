"""Cases of the checks of active tests, and of a speed against its own past."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gpudiag.model.active import (
    DEVICE_TO_HOST,
    HOST_TO_DEVICE,
    MEMORY_COPY,
    ActiveMeasurement,
    SustainedPoint,
)
from gpudiag.model.device import Snapshot
from gpudiag.model.history import Baseline, History
from gpudiag.model.measure import Incident
from gpudiag.model.report import Measures
from tests.scenarios.rank_cases import rank_cases
from tests.scenarios.situations import Remember, Situation, case, now
from tests.unit.checks.active_measures import (
    LINK_SPEED,
    MATMUL_SPEED,
    MEMORY_SPEED,
    PEER_SPEED,
    measure_cpu,
    measure_gpus,
    with_one,
)

SICK = 3
OTHER_DIGEST = "fedcba9876543210"
Spoil = Callable[[ActiveMeasurement], ActiveMeasurement]


def gpus(spoil: Spoil, remembered: Remember | None = None) -> Situation:
    """The GPUs measured what they should, but for what `spoil` changes."""

    def measure(snapshot: Snapshot) -> Measures:
        return Measures(active=spoil(measure_gpus(snapshot)))

    return now(measured=measure) if remembered is None else now(measured=measure, remembered=remembered)


def cpu(world_size: int, spoil: Spoil) -> Situation:
    """The same of ranks on the CPU."""
    return now(measured=lambda snapshot: Measures(active=spoil(measure_cpu(world_size))))


def one(field: str, **changes: Any) -> Spoil:
    """One rank's results of that kind are others."""
    return lambda measured: replace(measured, **{field: with_one(getattr(measured, field), SICK, **changes)})


def copies(speed: float, *tests: str) -> Spoil:
    """One rank copies at that speed."""

    def spoil(measured: ActiveMeasurement) -> ActiveMeasurement:
        slow = (
            replace(copy, bytes_per_second=speed) if copy.rank == SICK and copy.test in tests else copy
            for copy in measured.bandwidth
        )
        return replace(measured, bandwidth=tuple(slow))

    return spoil


def products(speed: float) -> Spoil:
    """One rank multiplies at that speed, in two dtypes."""

    def spoil(measured: ActiveMeasurement) -> ActiveMeasurement:
        wide = tuple(replace(result, dtype="float16") for result in measured.compute)
        results = (*measured.compute, *wide)
        slow = (
            replace(result, flops_per_second=speed) if result.rank == SICK else result for result in results
        )
        return replace(measured, compute=tuple(slow))

    return spoil


def pair(speed: float) -> Spoil:
    """One GPU copies to one other at that speed."""

    def spoil(measured: ActiveMeasurement) -> ActiveMeasurement:
        slow = (
            replace(copy, bytes_per_second=speed) if (copy.rank, copy.peer) == (SICK, 5) else copy
            for copy in measured.bandwidth
        )
        return replace(measured, bandwidth=tuple(slow))

    return spoil


def load(lost_share: float) -> Spoil:
    """One rank loses that share of its speed in ten minutes of load."""
    points = tuple(
        SustainedPoint(float(at), MATMUL_SPEED * (1 - lost_share * at / 600)) for at in range(0, 600, 2)
    )
    return one("sustained", points=points)


def good_runs(median: float, *metrics: str) -> Remember:
    """The store holds what that GPU did in five good runs."""

    def remember(snapshot: Snapshot) -> History:
        uuid = str(snapshot.devices[SICK].id.uuid)
        before = (Baseline(metric, "B/s", uuid, median, 5, median, snapshot.taken_at) for metric in metrics)
        return History(snapshot.host, "store", baselines=tuple(before))

    return remember


def with_incidents(incidents: tuple[Incident, ...], complete: bool) -> Situation:
    return gpus(
        lambda measured: replace(
            measured, incidents=incidents, done=measured.tests if complete else measured.tests[:2]
        )
    )


ON_LINK = (HOST_TO_DEVICE, DEVICE_TO_HOST)

ACTIVE_CASES = (
    *rank_cases("active.ranks", with_incidents),
    case("bandwidth.data", "bandwidth.corrupted")(
        gpus(one("bandwidth", wrong_bytes=1)), gpus(one("bandwidth", bytes_per_second=1.0))
    ),
    case("compute.determinism", "compute.not_repeatable")(
        gpus(one("determinism", deviating=1)), gpus(one("determinism", digest=OTHER_DIGEST))
    ),
    case("compute.determinism", "compute.minority")(
        gpus(one("determinism", digest=OTHER_DIGEST)),
        gpus(one("determinism", digest=OTHER_DIGEST, device_name="A100")),
    ),
    case("compute.determinism", "compute.no_majority", base="none")(
        cpu(
            4,
            lambda measured: replace(
                measured,
                determinism=tuple(
                    replace(result, digest=OTHER_DIGEST if result.rank % 2 else result.digest)
                    for result in measured.determinism
                ),
            ),
        ),
        cpu(4, one("determinism", digest=OTHER_DIGEST)),
    ),
    case("memory.patterns", "memory.pattern_mismatch")(
        gpus(one("patterns", wrong_words=1)), gpus(one("patterns", wanted_bytes=2**35, tested_bytes=2**35))
    ),
    # 90 % of what the others reach.
    case("bandwidth.memory", "bandwidth.memory_slow")(
        gpus(copies(0.89 * MEMORY_SPEED, MEMORY_COPY)), gpus(copies(0.91 * MEMORY_SPEED, MEMORY_COPY))
    ),
    case("bandwidth.host_device", "bandwidth.host_slow")(
        gpus(copies(0.89 * LINK_SPEED, *ON_LINK)), gpus(copies(0.93 * LINK_SPEED, *ON_LINK))
    ),
    case("bandwidth.peer", "bandwidth.peer_slow")(
        gpus(pair(0.89 * PEER_SPEED)), gpus(pair(0.91 * PEER_SPEED))
    ),
    case("compute.matmul", "compute.slow")(
        gpus(products(0.89 * MATMUL_SPEED)), gpus(products(0.91 * MATMUL_SPEED))
    ),
    case("compute.sustained", "compute.slows_down")(gpus(load(0.07)), gpus(load(0.04))),
    # Slower than it was, and as fast as the others.
    case("performance.drift", "performance.drift")(
        gpus(copies(0.94 * MEMORY_SPEED, MEMORY_COPY), good_runs(MEMORY_SPEED, MEMORY_COPY)),
        gpus(copies(0.96 * MEMORY_SPEED, MEMORY_COPY), good_runs(MEMORY_SPEED, MEMORY_COPY)),
    ),
)
