"""How fast NCCL was, against what others published for such machines and against this machine's own past.

Only the plateau is judged, never an average over sizes: small messages measure latency. There is
no finding where nothing is known. Ranks on CPUs are never judged by their speed.
"""

from collections.abc import Mapping, Sequence

from gpudiag.checks.ranks.measured_speeds import HISTORY_RUNS, Opinion, judge_speed
from gpudiag.checks.ranks.movements import explain_by
from gpudiag.checks.registry import Basis, FindingKind
from gpudiag.model.device import Device
from gpudiag.model.evidence import Evidence, HostSubject
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity
from gpudiag.model.history import Baseline, Sample
from gpudiag.model.measure import CollectiveMeasurement, CollectiveResult
from gpudiag.model.reading import Missing, MissingReason, Reading
from gpudiag.reference.speeds import PublishedSpeed, published_speeds, speed_limits
from gpudiag.units import GIB, MIB, format_rate, format_size

_BASIS = Basis(
    reads="busbw of the largest messages, from the slowest rank of each iteration.",
    limit="Published figures for this GPU, count and algorithm, with their source; then this machine's"
    " own earlier runs.",
    look_also=("gpudiag history", "gpudiag nccl-test --all-sizes", "NCCL_DEBUG=INFO", "nvidia-smi nvlink -s"),
)
COLLECTIVE_SLOW = FindingKind(
    code="collective.slow",
    outcome=Outcome.WARN,
    severity=Severity.TRIAGE,
    category=Category.PERF_THRESHOLD,
    owner=Owner.HARDWARE,
    meaning="A collective is slower than on other such machines, or than it was on this one.",
    remedy="See what changed during the run (throttling, replays, NVLink errors); then find the slow "
    "GPU, node or link: `gpudiag nccl-test --localise`.",
    basis=_BASIS,
)
COLLECTIVE_SPEED = FindingKind(
    code="collective.speed",
    outcome=Outcome.PASS,
    severity=Severity.NONE,
    category=Category.NONE,
    owner=Owner.HARDWARE,
    meaning="A collective is as fast as on other such machines, or as it was on this one.",
    remedy="Nothing has to be done.",
    basis=_BASIS,
)

# From this size on NVLink machines are on their plateau, and published figures of one kind of machine agree within 1.5 %;
# at 1 GiB eight B200 give 723 of 846 GB/s.
PLATEAU_BYTES = 4 * GIB
# Results below this are latency, and too noisy to be compared with earlier ones.
STORED_BYTES = MIB
_BEST_RING = 1.05  # own choice: published figures of one machine's ring are 1 to 2 % apart


def judge_collective_speed(
    measurement: CollectiveMeasurement,
    devices: Sequence[Device],
    environment: Mapping[str, str],
    earlier: Mapping[str, Baseline],
) -> tuple[Finding, ...]:
    """A finding per operation whose speed can be compared: slow, or as it should be.

    `devices` are the GPUs that took part, all of them on this host; `earlier` has this machine's own
    baselines by metric.
    """
    if measurement.backend != "nccl" or measurement.world_size < 2 or measurement.ranks_share_gpu:
        return ()
    found = (
        _judge_result(result, measurement, devices, environment, earlier)
        for result in largest_results(measurement.results)
    )
    return explain_by([finding for finding in found if finding is not None], measurement.moved)


def samples_of(measurement: CollectiveMeasurement) -> tuple[Sample, ...]:
    """The samples that later runs are compared with: each operation's bus bandwidth at its largest size."""
    return tuple(
        Sample(metric_name(result, measurement), result.busbw_bytes_per_second, "B/s")
        for result in largest_results(measurement.results)
        if not isinstance(result.busbw_bytes_per_second, Missing)
    )


def metric_name(result: CollectiveResult, measurement: CollectiveMeasurement) -> str:
    """The metric of a result, with the method: `all_reduce.float32.8388608.nccl.4.busbw`."""
    reduce = "" if isinstance(result.reduce, Missing) or result.reduce == "sum" else f".{result.reduce}"
    placement = "" if result.in_place else ".out_of_place"
    method = f"{measurement.backend}.{measurement.world_size}"
    return f"{result.op}{reduce}{placement}.{result.dtype}.{result.size_bytes}.{method}.busbw"


def largest_results(results: Sequence[CollectiveResult]) -> list[CollectiveResult]:
    """The largest verified result of each operation, dtype and placement, if above latency sizes."""
    largest: dict[tuple[object, ...], CollectiveResult] = {}
    for result in results:
        key = (result.op, result.reduce, result.dtype, result.in_place, result.unaligned)
        good = result.verified is True and result.size_bytes >= STORED_BYTES
        if good and (key not in largest or largest[key].size_bytes < result.size_bytes):
            largest[key] = result
    return list(largest.values())


def find_algorithm(
    result: CollectiveResult, devices: Sequence[Device], environment: Mapping[str, str]
) -> Reading[str]:
    """NCCL's algorithm where it is known: by its settings, or by a speed that only one can reach.

    With NVLS the switches add up, so that busbw may exceed what the links of one GPU carry.
    """
    chosen = environment.get("NCCL_ALGO", "")
    if chosen and "," not in chosen and ":" not in chosen and not chosen.startswith("^"):
        return chosen
    link_rates = [_link_bytes_per_second(device) for device in devices]
    known = [rate for rate in link_rates if rate is not None]
    busbw = result.busbw_bytes_per_second
    if result.op == "all_reduce" and known and not isinstance(busbw, Missing) and busbw > max(known):
        return "NVLS"
    return Missing(MissingReason.NOT_SUPPORTED, "neither NCCL_ALGO nor the speed shows it")


def _judge_result(
    result: CollectiveResult,
    measurement: CollectiveMeasurement,
    devices: Sequence[Device],
    environment: Mapping[str, str],
    earlier: Mapping[str, Baseline],
) -> Finding | None:
    busbw = result.busbw_bytes_per_second
    if isinstance(busbw, Missing):
        return None
    opinions = [
        *_history_opinions(earlier.get(metric_name(result, measurement))),
        *_table_opinions(result, measurement, devices, environment),
    ]
    if not opinions:
        return None
    verdict = judge_speed("busbw", busbw, "B/s", opinions)
    kind = COLLECTIVE_SPEED if verdict.outcome is Outcome.PASS else COLLECTIVE_SLOW
    algorithm = find_algorithm(result, devices, environment)
    told = () if isinstance(algorithm, Missing) else (Evidence("algorithm", algorithm, source="NCCL"),)
    message = (
        f"{result.op} {result.dtype} of {format_size(result.size_bytes)} on {measurement.world_size} GPUs: "
        f"{format_rate(busbw)} busbw, expected {format_rate(max(opinion.expected for opinion in opinions))}"
    )
    return kind.finding(HostSubject(measurement.host), message, *verdict.evidence, *told)


def _history_opinions(before: Baseline | None) -> list[Opinion]:
    if before is None or before.count < HISTORY_RUNS or not before.median > 0:
        return []
    return [
        Opinion("history", before.median, f"median of {before.count} earlier runs", speed_limits()["history"])
    ]


def _table_opinions(
    result: CollectiveResult,
    measurement: CollectiveMeasurement,
    devices: Sequence[Device],
    environment: Mapping[str, str],
) -> list[Opinion]:
    """Published figures for exactly these GPUs, this number of them, and NCCL's algorithm."""
    if (
        result.op != "all_reduce"
        or result.size_bytes < PLATEAU_BYTES
        or len(devices) != measurement.world_size
    ):
        return []
    names = {device.name for device in devices}
    rates = [
        rate
        for rate in published_speeds()
        if rate.test == result.op and rate.gpus == len(devices) and names <= set(rate.models)
    ]
    algorithm = _algorithm_of(result, rates, devices, environment)
    return [
        Opinion(
            "table", rate.value, f"{rate.setup}: {rate.source}", speed_limits()[f"collective.{rate.kind}"]
        )
        for rate in rates
        if not rate.algorithm or rate.algorithm == algorithm
    ]


def _algorithm_of(
    result: CollectiveResult,
    rates: Sequence[PublishedSpeed],
    devices: Sequence[Device],
    environment: Mapping[str, str],
) -> str:
    """The algorithm whose figures count: as NCCL was set, or NVLS, its own choice where it can.

    A speed that NVLS would be slow for and a ring would not is a ring's: then NVLS is off, and no link is bad.
    """
    if environment.get("NCCL_NVLS_ENABLE") == "0":
        return "ring"
    told = {"ring": "ring", "tree": "tree", "nvls": "NVLS"}.get(environment.get("NCCL_ALGO", "").lower())
    if told is not None or not isinstance(find_algorithm(result, devices, environment), Missing):
        return told or "NVLS"
    share, busbw = speed_limits()["collective.measured"].warn, result.busbw_bytes_per_second
    rings = [rate.value for rate in rates if rate.algorithm == "ring"]
    fits = rings and not isinstance(busbw, Missing) and share * min(rings) <= busbw <= _BEST_RING * max(rings)
    return "ring" if fits else "NVLS"


def _link_bytes_per_second(device: Device) -> float | None:
    """What the NVLinks of a GPU carry in one direction together; None where it is not known."""
    links, rate = device.nvlinks, device.nvlink_bytes_per_second
    if isinstance(links, Missing) or isinstance(rate, Missing):
        return None
    return rate * sum(link.active is True for link in links)
