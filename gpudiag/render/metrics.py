"""Every metric of a GPU once: gpudiag's own name, dcgm-exporter's and OpenTelemetry's, and its samples.

Own names follow Prometheus (base units, `_total` for counters). dcgm-exporter's are those of its default
counters, which dashboards and alerts in the field use (dcgm-exporter 4.8, etc/default-counters.csv).
OpenTelemetry's are the hardware conventions (semantic-conventions 1.38, status development), read 2026-11.
`metrics_native.py`, `metrics_dcgm.py` and `metrics_otel.py` render them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpudiag.model.device import Device, MigInstance
from gpudiag.model.reading import Missing, Reading, value_or
from gpudiag.reference.declaration import COUNTER, Declared, Family
from gpudiag.reference.declaration import Metric as Sampled
from gpudiag.reference.readings import READINGS
from gpudiag.reference.vocabulary import (
    COSTLY_REASONS,
    PERFORMANCE_LIMITS,
    RECOVERY_ACTIONS,
    number_of,
    reason_mask,
)

_NANOSECONDS_PER_SECOND = 1e9
# The NVLink errors that are counted, in dcgm-exporter's words.
_NVLINK_ERRORS = {
    "crc_flit": "flow-control CRC errors", "crc_data": "data CRC errors", "replay": "retries",
    "recovery": "recovery errors",
}  # fmt: skip
_CAUSE_NAMES = {"sync_boost": "sync-boost", "board_limit": "board limit"}  # in dcgm-exporter's words

# One sample of a device: its labels beyond the device's, and the value in the metric's unit. What a MIG instance
# has of its own is a metric of readings that it has under the same names.
Samples = Callable[[Any], Iterator[tuple[dict[str, str], float]]]


@dataclass(frozen=True, slots=True)
class DcgmName:
    """dcgm-exporter's name for one sample of a metric, its unit there, and the labels of the sample."""

    name: str
    kind: str
    text: str
    scale: float = 1.0
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OtelName:
    """The OpenTelemetry name, unit and attributes of one sample of a metric."""

    name: str
    unit: str
    attributes: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric of a GPU, or of a MIG instance."""

    name: str
    kind: str  # gauge or counter
    text: str
    samples: Samples
    dcgm: tuple[DcgmName, ...] = ()
    otel: tuple[OtelName, ...] = ()
    core: bool = True  # False: constant or part of another metric; only in the full scrape
    rare: frozenset[str] = frozenset()  # label values of samples that are only in the full scrape


_ACTION_NAMES = ", ".join(
    f"{number} {action.replace('_', ' ').replace('p2p', 'P2P').replace('gpu', 'GPU').replace('imex', 'IMEX')}"
    for number, action in enumerate(("nothing", *RECOVERY_ACTIONS[1:]))
)


def _throttle(device: Device) -> Iterator[tuple[dict[str, str], float]]:
    reasons = device.clocks_event_reasons
    if not isinstance(reasons, Missing):
        for reason in COSTLY_REASONS:  # idleness and settings are in the mask
            yield {"reason": reason}, float(reason in reasons)


def _throttle_mask(device: Device) -> Iterator[tuple[dict[str, str], float]]:
    reasons = device.clocks_event_reasons
    if not isinstance(reasons, Missing):
        yield {}, float(reason_mask(reasons))


def _throttle_seconds(device: Device) -> Iterator[tuple[dict[str, str], float]]:
    seconds = device.throttle_seconds
    if isinstance(seconds, Missing):
        return
    for reason in PERFORMANCE_LIMITS:
        reading: Reading[float] = getattr(seconds, reason)
        if not isinstance(reading, Missing):
            yield {"reason": reason}, reading


def _nvlinks(device: Device) -> Iterator[tuple[dict[str, str], float]]:
    links = device.nvlinks
    if isinstance(links, Missing):
        return
    known = [link.active for link in links if not isinstance(link.active, Missing)]
    yield {"state": "active"}, float(sum(known))
    yield {"state": "inactive"}, float(len(known) - sum(known))


def _nvlink_errors(device: Device) -> Iterator[tuple[dict[str, str], float]]:
    links = device.nvlinks
    if isinstance(links, Missing) or not links:
        return
    for kind in _NVLINK_ERRORS:
        readings = [getattr(link, f"{kind}_errors") for link in links]
        known = [float(reading) for reading in readings if not isinstance(reading, Missing)]
        if known:
            yield {"type": kind}, sum(known)


def _memory_share(device: Device) -> Iterator[tuple[dict[str, str], float]]:
    used, total = device.memory_used_bytes, device.memory_total_bytes
    reserved = value_or(device.memory_reserved_bytes, 0)
    if not isinstance(used, Missing) and not isinstance(total, Missing) and total > reserved:
        yield {}, used / (total - reserved)


def _vgpu_licensed(device: Device) -> Iterator[tuple[dict[str, str], float]]:
    if device.vgpu_license in ("licensed", "unlicensed"):
        yield {}, float(device.vgpu_license == "licensed")


def _vgpu_license_status(device: Device) -> Iterator[tuple[dict[str, str], float]]:
    if not isinstance(device.vgpu_license, Missing):
        yield {}, float(device.vgpu_license == "licensed")


def _processes(device: Device) -> Iterator[tuple[dict[str, str], float]]:
    if not isinstance(device.processes, Missing):
        yield {}, float(len(device.processes))


def _processes_memory(device: Device) -> Iterator[tuple[dict[str, str], float]]:
    held = [process.memory_used_bytes for process in value_or(device.processes, ())]
    if held and not any(isinstance(one, Missing) for one in held):
        yield {}, float(sum(one for one in held if not isinstance(one, Missing)))


def _recovery(device: Device) -> Iterator[tuple[dict[str, str], float]]:
    action = device.recovery_action
    if not isinstance(action, Missing):
        yield {}, float(number_of(RECOVERY_ACTIONS, action))


def _responding(device: Device) -> Iterator[tuple[dict[str, str], float]]:
    if not device.is_asleep:
        yield {}, float(device.responding is True)


_UP_METRIC = Metric(
    "gpudiag_gpu_up", "gauge", "1 if the GPU answers, 0 if it is lost or silent.", _responding
)
# Metrics that are not the number of a reading, by the reading that they are made from.
_MADE: dict[str, tuple[Metric, ...]] = {
    "clocks_event_reasons": (
        Metric(
            "gpudiag_gpu_throttle_active", "gauge", "1 while that reason holds the clocks down.", _throttle
        ),
        Metric(
            "gpudiag_gpu_throttle_mask",
            "gauge",
            "The same as bits, in NVML's order.",
            _throttle_mask,
            (
                DcgmName(
                    "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "gauge", "Current clock throttle reasons (bitmask)."
                ),
            ),
            core=False,
        ),
    ),
    "throttle_seconds": (
        Metric(
            "gpudiag_gpu_throttle_seconds_total",
            "counter",
            "Seconds for which that reason has held the clocks down since the driver was loaded.",
            _throttle_seconds,
            tuple(
                DcgmName(
                    f"DCGM_FI_DEV_{reason.upper()}_VIOLATION",
                    "counter",
                    f"Throttling duration due to {_CAUSE_NAMES.get(reason, reason)} constraints (in ns).",
                    _NANOSECONDS_PER_SECOND,
                    {"reason": reason},
                )
                for reason in PERFORMANCE_LIMITS
            ),
        ),
    ),
    "nvlinks": (
        Metric("gpudiag_gpu_nvlink_links", "gauge", "NVLinks by state.", _nvlinks),
        Metric(
            "gpudiag_gpu_nvlink_errors_total",
            "counter",
            "NVLink errors over all links.",
            _nvlink_errors,
            tuple(
                DcgmName(
                    f"DCGM_FI_DEV_NVLINK_{error.upper()}_ERROR_COUNT_TOTAL",
                    "counter",
                    f"Total number of NVLink {words}.",
                    labels={"type": error},
                )
                for error, words in _NVLINK_ERRORS.items()
            ),
            rare=frozenset({"crc_flit"}),
        ),
    ),
    "recovery_action": (
        Metric(
            "gpudiag_gpu_recovery_action",
            "gauge",
            f"What NVML asks for: {_ACTION_NAMES}.",
            _recovery,
        ),
    ),
    "memory_total_bytes": (
        Metric(
            "gpudiag_gpu_memory_used_ratio",
            "gauge",
            "Memory in use, as a share of what the driver leaves, 0 to 1.",
            _memory_share,
            (
                DcgmName(
                    "DCGM_FI_DEV_FB_USED_PERCENT",
                    "gauge",
                    "Percentage used of framebuffer: used / (total - reserved), 0.0 to 1.0.",
                ),
            ),
            core=False,
        ),
    ),
    "vgpu_license": (
        Metric(
            "gpudiag_gpu_vgpu_licensed", "gauge", "1 when the virtual GPU has its license.", _vgpu_licensed
        ),
    ),
    "processes": (
        Metric("gpudiag_gpu_processes", "gauge", "Processes that hold memory on the GPU.", _processes),
        Metric(
            "gpudiag_gpu_processes_memory_bytes",
            "gauge",
            "Memory that the GPU's processes hold, all together; also where memory is unified.",
            _processes_memory,
        ),
    ),
}


def _tabulate() -> Iterator[Metric]:
    """Every metric: whether the GPU answers, then those of each reading in the order of their declarations."""
    yield _UP_METRIC
    samples: dict[str, list[Declared]] = {}
    for declared in READINGS:
        if declared.metric is not None:
            samples.setdefault(declared.metric.family.name, []).append(declared)
    for declared in READINGS:
        if declared.metric is not None:
            sampled = samples.pop(declared.metric.family.name, None)
            if sampled is not None:
                yield _metric(declared.metric.family, sampled)
        yield from _MADE.get(declared.name, ())


def _metric(family: Family, readings: Sequence[Declared], prefix: str = "gpudiag_gpu_") -> Metric:
    """The metric of one family, with a sample for each of the readings."""
    sampled = [(one.name, one.metric) for one in readings if one.metric is not None]
    return Metric(
        f"{prefix}{family.name}{'_total' if family.kind == COUNTER else ''}",
        family.kind,
        family.text,
        _sampler([(name, metric.labels, metric.scale) for name, metric in sampled]),
        tuple(
            DcgmName(
                metric.dcgm.full_name,
                metric.dcgm.kind,
                metric.dcgm.text,
                metric.dcgm.scale,
                metric.labels,
            )
            for _, metric in sampled
            if metric.dcgm is not None
        ),
        tuple(
            OtelName(metric.otel.name, metric.otel.unit, dict(metric.otel.attributes), metric.labels)
            for _, metric in sampled
            if metric.otel is not None
        ),
        core=family.core,
        rare=_words(metric for _, metric in sampled if metric.rare)
        - _words(metric for _, metric in sampled if not metric.rare),
    )


def _words(samples: Iterable[Sampled]) -> frozenset[str]:
    return frozenset(word for sample in samples for word in sample.labels.values())


def _sampler(readings: Sequence[tuple[str, dict[str, str], float]]) -> Samples:
    """A sample for each of the readings that are there: name, labels and the factor into the metric's unit."""

    def read(device: Device | MigInstance) -> Iterator[tuple[dict[str, str], float]]:
        for name, labels, scale in readings:
            reading: Reading[float] = getattr(device, name)
            if not isinstance(reading, Missing):
                yield labels, float(reading) * scale

    return read


def _tabulate_instances() -> Iterator[Metric]:
    """Every metric of a MIG instance: those of the readings that it has as the whole GPU has them."""
    families: dict[str, tuple[Family, list[Declared]]] = {}
    for declared in READINGS:
        if declared.metric is not None and declared.name in MigInstance.__dataclass_fields__:
            family = declared.metric.family
            families.setdefault(family.name, (family, []))[1].append(declared)
    for family, readings in families.values():
        yield _metric(family, readings, "gpudiag_mig_")


# What only dcgm-exporter has: 0 for a physical GPU too, which needs no license; the mask under DCGM 4's name.
_ONLY_DCGM = (
    Metric(
        "",
        "gauge",
        "",
        _vgpu_license_status,
        (DcgmName("DCGM_FI_DEV_VGPU_LICENSE_STATUS", "gauge", "vGPU License status"),),
    ),
    Metric(
        "",
        "gauge",
        "",
        _sampler([("power_draw_watts", {}, 1.0)]),  # the present draw on every GPU whose NVML names it so
        (DcgmName("DCGM_FI_DEV_POWER_USAGE_INSTANT", "gauge", "Instantaneous power draw (in W)."),),
    ),
    Metric(
        "",
        "gauge",
        "",
        _throttle_mask,
        (DcgmName("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "gauge", "Current clock event reasons (bitmask)."),),
    ),
)
METRICS: tuple[Metric, ...] = tuple(_tabulate())
DCGM_METRICS: tuple[Metric, ...] = (*METRICS, *_ONLY_DCGM)
MIG_METRICS: tuple[Metric, ...] = tuple(_tabulate_instances())
