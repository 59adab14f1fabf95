"""How a measured speed is judged: by what the device reports, its peers, its own past, and a table."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Protocol, TypeVar

from gpudiag.checks.subjects import device_subject, name_device
from gpudiag.model.active import MATMUL, NOT_TESTED, ActiveMeasurement, BandwidthResult, ComputeResult
from gpudiag.model.context import Context
from gpudiag.model.device import Device, Snapshot
from gpudiag.model.evidence import Evidence, RankSubject, Subject
from gpudiag.model.finding import Outcome, worst
from gpudiag.model.history import Baseline
from gpudiag.model.reading import NOT_ASKED, Missing, Reading
from gpudiag.reference.gpu_models import (
    CORES_PER_MULTIPROCESSOR,
    LEAST_CAPABILITY_OF_DTYPE,
    RATE_OF_DTYPE,
    TENSOR_FLOPS_PER_CLOCK,
    GpuModel,
    find_model,
)
from gpudiag.reference.speeds import (
    SpeedLimit,
    least_size,
    nvlink_payload,
    pcie_bytes_per_second,
    speed_limits,
    sustained_speed,
)
from gpudiag.reference.vocabulary import REASON_MEANINGS

WORDS_PER_CLOCK = 2  # memory moves a word on both edges of its clock
HERTZ_PER_MHZ = 1_000_000
_OLD_GENERATIONS = 3  # of PCIe

NOT_ON_CPU = "speed is not judged on the CPU"
HISTORY_RUNS = 3  # our choice: a baseline of fewer runs is chance


@dataclass(frozen=True, slots=True)
class Opinion:
    """A speed to expect, in the unit of what was measured, its source, and how it is compared."""

    origin: str  # derived, peers, history or table
    expected: float
    source: str
    shares: SpeedLimit

    def judge(self, measured: float) -> Outcome:
        """The judgement of a measured speed by this opinion alone."""
        if self.shares.fail is not None and measured < self.shares.fail * self.expected:
            return Outcome.FAIL
        return Outcome.WARN if measured < self.shares.warn * self.expected else Outcome.PASS


@dataclass(frozen=True, slots=True)
class SpeedVerdict:
    """The worst opinion on a measured speed, and all of them as evidence; None: there was no opinion."""

    outcome: Outcome | None
    evidence: tuple[Evidence, ...]


def judge_speed(name: str, measured: float, unit: str, opinions: Sequence[Opinion]) -> SpeedVerdict:
    """The opinions' joint verdict on `measured`; none (never PASS) without an opinion."""
    if not measured > 0:  # also true for NaN
        return SpeedVerdict(Outcome.FAIL, (Evidence(name, str(measured), unit, source="measured"),))
    evidence = tuple(
        Evidence(
            name,
            measured,
            unit,
            opinion.shares.warn * opinion.expected,
            f"{opinion.origin}: {opinion.shares.warn:.0%} of"
            f" {opinion.expected:.4g} {unit} ({opinion.source})",
        )
        for opinion in opinions
    )
    if not opinions:
        return SpeedVerdict(
            None, (Evidence(name, measured, unit, source="measured; nothing to compare it with"),)
        )
    return SpeedVerdict(worst(tuple(opinion.judge(measured) for opinion in opinions)), evidence)


def peers_opinion(measured_by_peers: Iterable[float]) -> tuple[Opinion, ...]:
    """The speed of identical GPUs of the machine in the same test; empty where there are fewer than two."""
    values = [value for value in measured_by_peers if value > 0]
    if len(values) < 2:
        return ()
    return (
        Opinion(
            "peers", median(values), f"median of {len(values)} identical GPUs here", speed_limits()["peers"]
        ),
    )


def history_opinion(before: Iterable[float]) -> tuple[Opinion, ...]:
    """This GPU's earlier speed in the same test; empty where it was never measured."""
    values = [value for value in before if value > 0]
    if not values:
        return ()
    return (
        Opinion(
            "history", median(values), f"median of {len(values)} earlier runs", speed_limits()["history"]
        ),
    )


def memory_opinions(device: Device) -> tuple[Opinion, ...]:
    """Bytes per second that the GPU's memory should move: by bus width and clock, and by the data sheet."""
    width, clock, limits = device.memory_bus_width_bits, device.memory_clock_max_mhz, speed_limits()
    found = []
    if not isinstance(width, Missing) and not isinstance(clock, Missing):
        expected = WORDS_PER_CLOCK * clock * HERTZ_PER_MHZ * width / 8
        found.append(
            Opinion(
                "derived",
                expected,
                f"{width} bits at {clock} MHz, two words a clock",
                limits["memory.derived"],
            )
        )
    model = _model(device)
    if model is not None:
        found.append(Opinion("table", model.memory_bytes_per_second, model.source, limits["memory.table"]))
    return tuple(found)


def host_link_opinions(generation: int, width: int) -> tuple[Opinion, ...]:
    """Bytes per second between host and GPU, by the link's generation and width read during the transfer."""
    expected = pcie_bytes_per_second(generation, width)
    name = "host_link.derived" if generation > _OLD_GENERATIONS else "host_link.derived.1-3"
    return (Opinion("derived", expected, f"PCIe {generation}.0 x{width}", speed_limits()[name]),)


def peer_link_opinions(device: Device, links: int) -> tuple[Opinion, ...]:
    """Bytes per second one way between two GPUs by NVLink: that pair's links, times their payload."""
    rate = device.nvlink_bytes_per_second
    if isinstance(rate, Missing) or not links:
        return ()
    payload = nvlink_payload(rate)
    source = f"{links} NVLinks that carry {payload / 1e9:.1f} GB/s each"
    return (Opinion("derived", links * payload, source, speed_limits()["peer_link.derived"]),)


@dataclass(frozen=True, slots=True)
class Meanwhile:
    """What a GPU did while it was measured, by NVML: medians, and every reason for its clock."""

    sm_clock_mhz: Reading[float]
    power_draw_watts: Reading[float]
    clocks_event_reasons: Reading[tuple[str, ...]]


def seen_meanwhile(measured: ActiveMeasurement, result: BandwidthResult | ComputeResult) -> Meanwhile | None:
    """What that result's GPU did from its beginning to its end; None where NVML was not read then."""
    began, ended = result.began_seconds, result.ended_seconds
    if isinstance(began, Missing) or isinstance(ended, Missing):
        return None
    points = [
        point
        for point in measured.telemetry
        if point.device_uuid == result.device_uuid and began <= point.at_seconds <= ended
    ]
    if not points:
        return None
    clocks = [point.sm_clock_mhz for point in points if not isinstance(point.sm_clock_mhz, Missing)]
    watts = [point.power_draw_watts for point in points if not isinstance(point.power_draw_watts, Missing)]
    readings = [point.clocks_event_reasons for point in points]
    reasons = [one for one in readings if not isinstance(one, Missing)]
    return Meanwhile(
        float(median(clocks)) if clocks else NOT_ASKED,
        float(median(watts)) if watts else NOT_ASKED,
        tuple(dict.fromkeys(word for one in reasons for word in one)) if reasons else NOT_ASKED,
    )


# NVML's clock event reasons, in our words.
_POWER_CAPS = frozenset(("sw_power_cap", "hw_power_brake_slowdown"))
_CHOSEN_CLOCKS = frozenset(word for word, means in REASON_MEANINGS.items() if means in ("setting", "peers"))


def matrix_opinions(device: Device, dtype: str, size: int, seen: Meanwhile | None) -> tuple[Opinion, ...]:
    """Operations per second of a large matrix product, at the clock read while it ran.

    Where the board's power limit holds the clock down, how far is a matter of the data and the cooling: then
    only by what a healthy GPU of its kind has sustained under a limit no higher. Empty where no clock was
    read, and where the GPU emulates the type.
    """
    if seen is None or isinstance(seen.clocks_event_reasons, Missing):
        return ()
    if _is_emulated(device.compute_capability, dtype):
        return ()
    reasons = set(seen.clocks_event_reasons)
    by_kind = () if reasons & _CHOSEN_CLOCKS else _sustained_opinion(device, dtype, size)
    if reasons & _POWER_CAPS or isinstance(seen.sm_clock_mhz, Missing):
        return by_kind
    return (*_clock_opinions(device, dtype, seen.sm_clock_mhz), *by_kind)


def _sustained_opinion(device: Device, dtype: str, size: int) -> tuple[Opinion, ...]:
    """By what gpudiag measured on a healthy GPU of this kind, unless this one may draw less power."""
    known = None if isinstance(device.name, Missing) else sustained_speed(MATMUL, device.name, dtype, size)
    watts = device.power_limit_enforced_watts
    if known is None or isinstance(watts, Missing) or watts < known.power_limit_watts:
        return ()
    source = f"{known.setup}: {known.source}"
    return (Opinion("sustained", known.value, source, speed_limits()["matrix.sustained"]),)


def _clock_opinions(device: Device, dtype: str, sm_clock_mhz: float) -> tuple[Opinion, ...]:
    capability, cores, limits = device.compute_capability, device.cuda_cores, speed_limits()
    found, model = [], _model(device)
    per_clock = TENSOR_FLOPS_PER_CLOCK.get(str(capability))
    known = not isinstance(cores, Missing) and per_clock is not None
    if known and dtype in RATE_OF_DTYPE and not _is_halved(device):
        multiprocessors = int(str(cores)) // CORES_PER_MULTIPROCESSOR[str(capability)]
        expected = multiprocessors * sm_clock_mhz * HERTZ_PER_MHZ * (per_clock or 0) * RATE_OF_DTYPE[dtype]
        source = (
            f"{multiprocessors} multiprocessors at {sm_clock_mhz:.0f} MHz, {per_clock} operations a clock"
        )
        found.append(Opinion("derived", expected, source, limits["matrix.derived"]))
    if model is not None and dtype in model.dense_flops_per_second:
        share = min(1.0, sm_clock_mhz / model.boost_clock_mhz)
        source = f"{model.source}, at {sm_clock_mhz:.0f} MHz"
        expected = share * model.dense_flops_per_second[dtype]
        found.append(Opinion("table", expected, source, limits["matrix.table"]))
    return tuple(found)


def _is_emulated(capability: Reading[str], dtype: str) -> bool:
    """Whether GPUs of that compute capability emulate the type, as Volta does bfloat16."""
    least = LEAST_CAPABILITY_OF_DTYPE.get(dtype)
    if least is None or isinstance(capability, Missing):
        return False
    return tuple(map(int, capability.split("."))) < least


def _is_halved(device: Device) -> bool:
    """Whether the product accumulates in float32 at half the rate of its architecture."""
    return not isinstance(device.name, Missing) and "GeForce" in device.name


def _model(device: Device) -> GpuModel | None:
    return None if isinstance(device.name, Missing) else find_model(device.name)


class OfRank(Protocol):
    """A result that one rank measured."""

    @property
    def rank(self) -> int:
        """The rank that measured it."""


_Result = TypeVar("_Result", bound=OfRank)


def device_of(snapshot: Snapshot, uuid: object) -> Device | None:
    """The GPU of that UUID in the snapshot."""
    return next((device for device in snapshot.devices if device.id.uuid == uuid), None)


def is_shared(measured: ActiveMeasurement, *uuids: Reading[str]) -> bool:
    """Whether others used one of these GPUs while it was tested: what was measured is no speed of it."""
    shared = {one.device_uuid for one in measured.shared if not isinstance(one.device_uuid, Missing)}
    return any(uuid in shared for uuid in uuids)


def is_long_enough(result: BandwidthResult) -> bool:
    """Whether each copy took so long that its start does not count in its speed."""
    return result.time_p50_seconds >= least_size().call_seconds


def why_shared(measured: ActiveMeasurement) -> str:
    """Why no speed is judged where others use the GPUs: which GPU, and who."""
    beside = "; ".join(f"{one.name}: {one.reason}" for one in measured.shared)
    return f"{NOT_TESTED} for speed, because others use it: {beside}"


def subject_of(context: Context, rank: int, uuid: Reading[str]) -> tuple[Subject, str]:
    """The subject of a finding about one rank's device, and its name: the GPU, or the rank on a CPU."""
    device = device_of(context.snapshot, uuid)
    if device is None:
        return RankSubject(rank, context.snapshot.host), f"rank {rank}"
    return device_subject(context.snapshot, device), name_device(device)


def same_product(snapshot: Snapshot, uuid: object, other_uuid: object) -> bool:
    """Whether two GPUs of the snapshot are of the same product."""
    device, other = device_of(snapshot, uuid), device_of(snapshot, other_uuid)
    return device is not None and other is not None and device.name == other.name


def find_baseline(context: Context, metric: str, device_uuid: str | None) -> Baseline | None:
    """The stored baseline of that metric; None where too few runs gave it."""
    if isinstance(context.history, Missing):
        return None
    for baseline in context.history.baselines:
        if (baseline.metric, baseline.device_uuid) == (metric, device_uuid):
            return baseline if baseline.count >= HISTORY_RUNS else None
    return None


def judge_against(
    context: Context, metric: str, uuid: object, measured: float, unit: str, opinions: Iterable[Opinion]
) -> SpeedVerdict:
    """The verdict on a measured speed by the opinions and the GPU's this machine's history."""
    baseline = find_baseline(context, metric, str(uuid))
    past = () if baseline is None else history_opinion([baseline.median])
    return judge_speed(unit_name(unit), measured, unit, (*opinions, *past))


def is_slow(verdict: SpeedVerdict) -> bool:
    """Whether the verdict is that the speed is too low."""
    return verdict.outcome in (Outcome.WARN, Outcome.FAIL)


def slow_by_rank(
    results: Iterable[_Result], verdicts: Iterable[SpeedVerdict]
) -> list[list[tuple[_Result, SpeedVerdict]]]:
    """The slow results, those of one rank together: a slow device is one fault, however it was measured."""
    slow: dict[int, list[tuple[_Result, SpeedVerdict]]] = defaultdict(list)
    for result, verdict in zip(results, verdicts, strict=True):
        if is_slow(verdict):
            slow[result.rank].append((result, verdict))
    return list(slow.values())


def name_evidence(
    slow: Sequence[tuple[_Result, SpeedVerdict]], name: Callable[[_Result], str]
) -> list[Evidence]:
    """The evidence of all results; where there are several, each fact carries its result's name."""
    return [
        replace(fact, name=f"{name(result)}_{fact.name}") if len(slow) > 1 else fact
        for result, verdict in slow
        for fact in verdict.evidence
    ]


def any_opinion(verdicts: Sequence[SpeedVerdict]) -> bool:
    """Whether there was any opinion to compare a speed with."""
    return any(verdict.outcome is not None for verdict in verdicts)


def unit_name(unit: str) -> str:
    """The name that evidence gives a rate in that unit."""
    return {"B/s": "bytes_per_second", "FLOP/s": "flops_per_second"}[unit]
