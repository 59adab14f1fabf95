"""Every metric of a GPU once: its declaration, and its samples.

Own names follow Prometheus (base units, `_total` for counters). dcgm-exporter's are those of its default
counters, which dashboards and alerts in the field use (dcgm-exporter 4.8, etc/default-counters.csv).
`metrics_native.py` and `metrics_dcgm.py` render them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gpudiag.model.device import Device, MigInstance
from gpudiag.model.reading import Missing, Reading, value_or
from gpudiag.reference.declaration import COUNTER, Dcgm, Declared, Family, Metric
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
    "crc_flit": "flow-control CRC errors",
    "crc_data": "data CRC errors",
    "replay": "retries",
    "recovery": "recovery errors",
}
_CAUSE_NAMES = {"sync_boost": "sync-boost", "board_limit": "board limit"}  # in dcgm-exporter's words

# One sample of a device: its labels beyond the device's, and the value in the metric's unit. What a MIG
# instance has of its own is a metric of readings that it has under the same names.
Samples = Callable[[Any], Iterator[tuple[dict[str, str], float]]]


@dataclass(frozen=True, slots=True)
class Sampled:
    """A family with its samples, and dcgm-exporter's names, each for the sample that has those labels."""

    family: Family
    samples: Samples
    dcgm: tuple[tuple[Dcgm, dict[str, str]], ...] = ()
    rare: frozenset[str] = frozenset()  # label values of samples that are only in the full scrape
    prefix: str = "gpudiag_gpu_"

    @property
    def name(self) -> str:
        """The metric's whole name of our own."""
        return f"{self.prefix}{self.family.name}{'_total' if self.family.kind == COUNTER else ''}"


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


def _violation(reason: str) -> Dcgm:
    words = f"Throttling duration due to {_CAUSE_NAMES.get(reason, reason)} constraints (in ns)."
    return Dcgm(f"{reason.upper()}_VIOLATION", words, _NANOSECONDS_PER_SECOND, COUNTER)


def _nvlink_error(error: str) -> Dcgm:
    words = f"Total number of NVLink {_NVLINK_ERRORS[error]}."
    return Dcgm(f"NVLINK_{error.upper()}_ERROR_COUNT_TOTAL", words, kind=COUNTER)


_UP = Sampled(Family("up", "1 if the GPU answers, 0 if it is lost or silent."), _responding)
# Metrics that are not the number of a reading, by the reading that they are made from.
_MADE: dict[str, tuple[Sampled, ...]] = {
    "clocks_event_reasons": (
        Sampled(Family("throttle_active", "1 while that reason holds the clocks down."), _throttle),
        Sampled(
            Family("throttle_mask", "The same as bits, in NVML's order.", core=False),
            _throttle_mask,
            ((Dcgm("CLOCK_THROTTLE_REASONS", "Current clock throttle reasons (bitmask)."), {}),),
        ),
    ),
    "throttle_seconds": (
        Sampled(
            Family(
                "throttle_seconds",
                "Seconds for which that reason has held the clocks down since the driver was loaded.",
                COUNTER,
            ),
            _throttle_seconds,
            tuple((_violation(reason), {"reason": reason}) for reason in PERFORMANCE_LIMITS),
        ),
    ),
    "nvlinks": (
        Sampled(Family("nvlink_links", "NVLinks by state."), _nvlinks),
        Sampled(
            Family("nvlink_errors", "NVLink errors over all links.", COUNTER),
            _nvlink_errors,
            tuple((_nvlink_error(error), {"type": error}) for error in _NVLINK_ERRORS),
            rare=frozenset({"crc_flit"}),
        ),
    ),
    "recovery_action": (
        Sampled(Family("recovery_action", f"What NVML asks for: {_ACTION_NAMES}."), _recovery),
    ),
    "memory_total_bytes": (
        Sampled(
            Family(
                "memory_used_ratio",
                "Memory in use, as a share of what the driver leaves, 0 to 1.",
                core=False,
            ),
            _memory_share,
            (
                (
                    Dcgm(
                        "FB_USED_PERCENT",
                        "Percentage used of framebuffer: used / (total - reserved), 0.0 to 1.0.",
                    ),
                    {},
                ),
            ),
        ),
    ),
    "vgpu_license": (
        Sampled(Family("vgpu_licensed", "1 when the virtual GPU has its license."), _vgpu_licensed),
    ),
    "processes": (
        Sampled(Family("processes", "Processes that hold memory on the GPU."), _processes),
        Sampled(
            Family(
                "processes_memory_bytes",
                "Memory that the GPU's processes hold, all together; also where memory is unified.",
            ),
            _processes_memory,
        ),
    ),
}


def _tabulate(thing: type[Device | MigInstance], prefix: str) -> Iterator[Sampled]:
    """The metrics of the readings that such a thing has, in the order of their declarations.

    Those of a GPU have also those made of them.
    """
    families: dict[str, list[Declared]] = {}
    readings = [one for one in READINGS if one.name in thing.__dataclass_fields__]
    for declared in readings:
        if declared.metric is not None:
            families.setdefault(declared.metric.family.name, []).append(declared)
    for declared in readings:
        if declared.metric is not None:
            together = families.pop(declared.metric.family.name, None)
            if together is not None:
                yield _sampled(declared.metric.family, together, prefix)
        if thing is Device:
            yield from _MADE.get(declared.name, ())


def _sampled(family: Family, readings: Sequence[Declared], prefix: str) -> Sampled:
    """The family with a sample for each of the readings."""
    samples = [(one.name, one.metric) for one in readings if one.metric is not None]
    return Sampled(
        family,
        _sampler([(name, metric.labels, metric.scale) for name, metric in samples]),
        tuple((metric.dcgm, metric.labels) for _, metric in samples if metric.dcgm is not None),
        _words(metric for _, metric in samples if metric.rare)
        - _words(metric for _, metric in samples if not metric.rare),
        prefix,
    )


def _words(samples: Iterable[Metric]) -> frozenset[str]:
    return frozenset(word for sample in samples for word in sample.labels.values())


def _sampler(readings: Sequence[tuple[str, dict[str, str], float]]) -> Samples:
    """A sample for each reading that is there: name, labels and the factor into the metric's unit."""

    def read(device: Device | MigInstance) -> Iterator[tuple[dict[str, str], float]]:
        for name, labels, scale in readings:
            reading: Reading[float] = getattr(device, name)
            if not isinstance(reading, Missing):
                yield labels, float(reading) * scale

    return read


# What only dcgm-exporter has: 0 for a physical GPU too, which needs no license; the mask under DCGM 4's name.
_NOT_OURS = Family("", "")
_ONLY_DCGM = (
    Sampled(_NOT_OURS, _vgpu_license_status, ((Dcgm("VGPU_LICENSE_STATUS", "vGPU License status"), {}),)),
    Sampled(
        _NOT_OURS,
        _sampler([("power_draw_watts", {}, 1.0)]),  # the present draw on every GPU whose NVML names it so
        ((Dcgm("POWER_USAGE_INSTANT", "Instantaneous power draw (in W)."), {}),),
    ),
    Sampled(
        _NOT_OURS,
        _throttle_mask,
        ((Dcgm("CLOCKS_EVENT_REASONS", "Current clock event reasons (bitmask)."), {}),),
    ),
)
METRICS: tuple[Sampled, ...] = (_UP, *_tabulate(Device, "gpudiag_gpu_"))
DCGM_METRICS: tuple[Sampled, ...] = (*METRICS, *_ONLY_DCGM)
MIG_METRICS: tuple[Sampled, ...] = tuple(_tabulate(MigInstance, "gpudiag_mig_"))
