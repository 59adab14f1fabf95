"""A machine's numbers for Prometheus, in gpudiag's own names or in dcgm-exporter's, and for OpenTelemetry.

Own names follow Prometheus (base units, `_total` for counters). dcgm-exporter's are those of its default
counters, which dashboards and alerts in the field use (dcgm-exporter 4.8, etc/default-counters.csv).
OpenTelemetry's are the hardware conventions (semantic-conventions 1.38, status development), read 2026-11.

What is missing has no series; 0 is always a measurement. Identity is in one `_info` series; those that
alerts start from carry the UUID too. The full scrape has it everywhere, with what is constant or
follows from the rest. Written by hand: a client library takes ten times as long for the same text.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpudiag import __version__
from gpudiag.model.device import Device, GpuProcess, Snapshot
from gpudiag.model.finding import CheckResult, Outcome
from gpudiag.model.reading import Missing, Reading, value_or
from gpudiag.model.service import TimelineEntry, TimelineKind
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
from gpudiag.render.style import one_line

# --- every metric once

_NANOSECONDS_PER_SECOND = 1e9
# The NVLink errors that are counted, in dcgm-exporter's words.
_NVLINK_ERRORS = {
    "crc_flit": "flow-control CRC errors", "crc_data": "data CRC errors", "replay": "retries",
    "recovery": "recovery errors",
}  # fmt: skip
_CAUSES_TOLD = {"sync_boost": "sync-boost", "board_limit": "board limit"}  # in dcgm-exporter's words

# One sample of a device: its labels beyond the device's, and the value in the metric's unit.
Samples = Callable[[Device], Iterator[tuple[dict[str, str], float]]]


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
    """One metric of a GPU."""

    name: str
    kind: str  # gauge or counter
    text: str
    samples: Samples
    dcgm: tuple[DcgmName, ...] = ()
    otel: tuple[OtelName, ...] = ()
    core: bool = True  # False: constant or part of another metric; only in the full scrape
    rare: frozenset[str] = frozenset()  # label values of samples that are only in the full scrape


_ACTIONS_TOLD = ", ".join(
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


def _processes(device: Device) -> Iterator[tuple[dict[str, str], float]]:
    if not isinstance(device.processes, Missing):
        yield {}, float(len(device.processes))


def _recovery(device: Device) -> Iterator[tuple[dict[str, str], float]]:
    action = device.recovery_action
    if not isinstance(action, Missing):
        yield {}, float(number_of(RECOVERY_ACTIONS, action))


def _responding(device: Device) -> Iterator[tuple[dict[str, str], float]]:
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
                    f"Throttling duration due to {_CAUSES_TOLD.get(reason, reason)} constraints (in ns).",
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
            f"What NVML asks for: {_ACTIONS_TOLD}.",
            _recovery,
        ),
    ),
    "processes": (
        Metric("gpudiag_gpu_processes", "gauge", "Processes that hold memory on the GPU.", _processes),
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


def _metric(family: Family, readings: Sequence[Declared]) -> Metric:
    """The metric of one family, with a sample for each of the readings."""
    sampled = [(one.name, one.metric) for one in readings if one.metric is not None]
    return Metric(
        f"gpudiag_gpu_{family.name}{'_total' if family.kind == COUNTER else ''}",
        family.kind,
        family.text,
        _sampler([(name, metric.labels, metric.scale) for name, metric in sampled]),
        tuple(
            DcgmName(
                f"DCGM_FI_DEV_{metric.dcgm.name}",
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

    def read(device: Device) -> Iterator[tuple[dict[str, str], float]]:
        for name, labels, scale in readings:
            reading: Reading[float] = getattr(device, name)
            if not isinstance(reading, Missing):
                yield labels, float(reading) * scale

    return read


METRICS: tuple[Metric, ...] = tuple(_tabulate())


# --- their renderings

_MAX_LABEL_CHARACTERS = 200
_UP = "gpudiag_gpu_up"  # what an alert on a lost GPU starts from
_XID_EVENTS = ("gpudiag_gpu_xid_events_total", "Xids that NVML reported since the service started.")
_XID_LAST = ("gpudiag_gpu_xid_last_timestamp_seconds", "Time of the last report of that Xid.")

Labels = dict[str, str]


@dataclass(frozen=True, slots=True)
class ServiceNumbers:
    """The service's numbers about itself and the checks, beside those of the GPUs."""

    sampler_state: str
    fresh: bool  # whether the numbers are of now
    last_good_at: float | None  # Unix time of the last tick
    tick_seconds: float | None
    restarts: int
    stuck_children: int
    stream_clients: int
    nvml_state: str
    health: dict[str, str] = field(default_factory=dict)  # by UUID: ok, warn, fail or error
    results: tuple[CheckResult, ...] = ()
    events: tuple[TimelineEntry, ...] = ()
    active_runs: int = 0
    processes: bool = False  # one series for each process: they come and go


def render_metrics(snapshot: Snapshot, numbers: ServiceNumbers, *, full: bool = False) -> str:
    """The machine in gpudiag's own names (text exposition format 0.0.4); `full`: with every series."""
    page = _Page()
    build = {"version": __version__, "host": snapshot.host}
    if snapshot.simulated:
        build["simulated"] = snapshot.simulated
    page.add(
        "gpudiag_build_info", "gauge", "The version of gpudiag that answers, and its host.", [(build, 1.0)]
    )
    page.add(
        "gpudiag_gpu_info",
        "gauge",
        "The identity of each GPU.",
        [({**_device_labels(device), **_identity(device, snapshot)}, 1.0) for device in snapshot.devices],
    )
    whole = [_joined(_device_labels(device)) for device in snapshot.devices]
    short = whole if full else [_joined({"gpu": _gpu_label(device)}) for device in snapshot.devices]
    for metric in METRICS:
        if full or metric.core:
            bases = whole if metric.name == _UP else short
            rare = frozenset() if full else metric.rare
            lines = _lines(metric, snapshot.devices, bases, rare)
            page.add_lines(metric.name, metric.kind, metric.text, lines)
    _add_status(page, snapshot, numbers)
    _add_checks(page, numbers.results, full=full)
    _add_xids(page, numbers.events)
    if numbers.processes:
        _add_processes(page, snapshot.devices)
    _add_service(page, numbers)
    return page.text()


def render_dcgm(snapshot: Snapshot, events: tuple[TimelineEntry, ...] = ()) -> str:
    """The machine in dcgm-exporter's names, units and labels, for dashboards and alerts that expect them."""
    page = _Page()
    bases = [_joined(_dcgm_labels(device, snapshot)) for device in snapshot.devices]
    for metric in METRICS:
        for name in metric.dcgm:
            lines = [
                f"{name.name}{{{base}}} {_number(value * name.scale)}"
                for device, base in zip(snapshot.devices, bases, strict=True)
                for labels, value in metric.samples(device)
                if name.labels.items() <= labels.items()
            ]
            page.add_lines(name.name, name.kind, name.text, lines)
    last = {entry.uuid: entry.xid_code for entry in events if entry.kind is TimelineKind.XID}
    page.add(
        "DCGM_FI_DEV_XID_ERRORS",
        "gauge",
        "Value of the last XID error encountered.",
        [
            (_dcgm_labels(device, snapshot), float(last.get(value_or(device.id.uuid, "")) or 0))
            for device in snapshot.devices
            if device.responding is True
        ],
    )
    return page.text()


def otel_document(snapshot: Snapshot) -> dict[str, Any]:
    """The numbers under OpenTelemetry's names for hardware: metrics with data points and attributes."""
    metrics: dict[str, dict[str, Any]] = {}
    for metric in METRICS:
        for name in metric.otel:
            points = [
                {"attributes": {**_otel_identity(device, snapshot), **name.attributes}, "value": value}
                for device in snapshot.devices
                for labels, value in metric.samples(device)
                if name.labels.items() <= labels.items()
            ]
            if points:
                entry = metrics.setdefault(name.name, {"name": name.name, "unit": name.unit, "points": []})
                entry["points"] += points
    return {
        "schema": "gpudiag.otel/1",
        "at": snapshot.taken_at.isoformat(),
        "host": snapshot.host,
        "metrics": list(metrics.values()),
    }


class _Page:
    """Lines of the text exposition format; a repeated name is our error and is dropped."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._names: set[str] = set()

    def add(self, name: str, kind: str, text: str, samples: Iterable[tuple[Labels, float]]) -> None:
        self.add_lines(
            name, kind, text, [f"{name}{_braced(labels)} {_number(value)}" for labels, value in samples]
        )

    def add_lines(self, name: str, kind: str, text: str, lines: list[str]) -> None:
        if lines and name not in self._names:
            self._names.add(name)
            self._lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}", *lines]

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"


def _lines(metric: Metric, devices: tuple[Device, ...], bases: list[str], rare: frozenset[str]) -> list[str]:
    """The samples of one metric without the rare ones; a device's labels are rendered once for all."""
    name = metric.name
    return [
        f"{name}{{{base}{_more(labels)}}} {_number(value)}"
        for device, base in zip(devices, bases, strict=True)
        for labels, value in metric.samples(device)
        if rare.isdisjoint(labels.values())
    ]


def _more(labels: Labels) -> str:
    return "".join(f',{name}="{word}"' for name, word in labels.items())  # words of ours: nothing to escape


def _add_status(page: _Page, snapshot: Snapshot, numbers: ServiceNumbers) -> None:
    samples = [
        ({**_device_labels(device), "state": numbers.health.get(_text(device.id.uuid), "error")}, 1.0)
        for device in snapshot.devices
    ]
    page.add("gpudiag_gpu_status", "gauge", "1 for the GPU's state: ok, warn, fail or error.", samples)


def _add_checks(page: _Page, results: tuple[CheckResult, ...], *, full: bool) -> None:
    """Add the number of checks per outcome, and each check neither passed nor skipped; the full scrape has all."""
    counts = Counter(result.outcome for result in results)
    counted = [({"outcome": outcome.value}, float(counts[outcome])) for outcome in Outcome if results]
    page.add("gpudiag_checks", "gauge", "Checks by outcome; skip did not apply.", counted)
    told = [result for result in results if full or result.outcome not in (Outcome.PASS, Outcome.SKIP)]
    statuses = [({"check": result.check, "outcome": result.outcome.value}, 1.0) for result in told]
    page.add("gpudiag_check_status", "gauge", "1 for the outcome of a check.", statuses)


def _add_xids(page: _Page, events: tuple[TimelineEntry, ...]) -> None:
    counts: dict[tuple[str, str, str], int] = {}
    last: dict[tuple[str, str, str], float] = {}
    for entry in events:
        if entry.kind is TimelineKind.XID:
            key = (str(entry.nvml_index), entry.uuid or "", str(entry.xid_code))
            counts[key] = counts.get(key, 0) + 1
            last[key] = entry.at.timestamp()
    labels = {key: {"gpu": key[0], "uuid": key[1], "xid": key[2]} for key in counts}
    page.add(_XID_EVENTS[0], "counter", _XID_EVENTS[1], [(labels[key], float(counts[key])) for key in counts])
    page.add(_XID_LAST[0], "gauge", _XID_LAST[1], [(labels[key], last[key]) for key in last])


def _add_processes(page: _Page, devices: tuple[Device, ...]) -> None:
    samples = [
        ({**_device_labels(device), **_process_labels(process)}, float(process.memory_used_bytes))
        for device in devices
        for process in value_or(device.processes, ())
        if not isinstance(process.memory_used_bytes, Missing)
    ]
    page.add("gpudiag_process_memory_bytes", "gauge", "Memory that a process holds on a GPU.", samples)


def _add_service(page: _Page, numbers: ServiceNumbers) -> None:
    plain = {
        "collect_success": ("1 when the numbers are fresh.", float(numbers.fresh)),
        "collect_duration_seconds": ("Duration of the last tick.", numbers.tick_seconds),
        "collect_last_success_timestamp_seconds": ("Time of NVML's last answer.", numbers.last_good_at),
        "sampler_stuck_processes": ("Samplers that the kernel cannot end.", float(numbers.stuck_children)),
        "stream_clients": ("Listeners of the live stream.", float(numbers.stream_clients)),
        "active_runs": ("Runs that wait or are running.", float(numbers.active_runs)),
    }
    for name, (text, value) in plain.items():
        if value is not None:
            page.add(f"gpudiag_{name}", "gauge", text, [({}, value)])
    page.add(
        "gpudiag_sampler_restarts_total",
        "counter",
        "How often the sampler was replaced.",
        [({}, float(numbers.restarts))],
    )
    page.add(
        "gpudiag_sampler_state",
        "gauge",
        "1 for the sampler's state.",
        [({"state": numbers.sampler_state}, 1.0)],
    )
    page.add("gpudiag_nvml_state", "gauge", "1 for how NVML answers.", [({"state": numbers.nvml_state}, 1.0)])


def _device_labels(device: Device) -> Labels:
    return {"gpu": _gpu_label(device), "uuid": _text(device.id.uuid)}


def _gpu_label(device: Device) -> str:
    """The NVML index; the bus id of a GPU that NVML does not see."""
    return _text(device.id.nvml_index) or _text(device.id.bus_id)


def _identity(device: Device, snapshot: Snapshot) -> Labels:
    known = {
        "name": _text(device.name),
        "pci_bus_id": _text(device.id.bus_id),
        "serial": _text(device.serial),
        "vbios": _text(device.vbios_version),
        "driver_version": _text(snapshot.driver_version),
        "cuda_version": _text(snapshot.cuda_driver_version),
        "arch": _text(device.architecture),
        "compute_cap": _text(device.compute_capability),
        "memory_kind": _text(device.memory_kind),
        "mig_mode": _text(device.mig_mode),
    }
    return {name: word for name, word in known.items() if word}


def _process_labels(process: GpuProcess) -> Labels:
    return {
        "pid": str(process.pid),
        "user": _text(process.user),
        "command": _text(process.command),
        "container": _text(process.container_id),
    }


def _dcgm_labels(device: Device, snapshot: Snapshot) -> Labels:
    """The labels of dcgm-exporter, in its order and spelling."""
    bus_id = _text(device.id.bus_id)
    return {
        "gpu": _text(device.id.nvml_index),
        "UUID": _text(device.id.uuid),
        "pci_bus_id": bus_id.upper(),
        "device": f"nvidia{_text(device.id.nvml_index)}",
        "modelName": _text(device.name),
        "Hostname": snapshot.host,
        "DCGM_FI_DRIVER_VERSION": _text(snapshot.driver_version),
    }


def _otel_identity(device: Device, snapshot: Snapshot) -> Labels:
    known = {
        "hw.id": _text(device.id.uuid),
        "hw.type": "gpu",
        "hw.name": f"GPU {_text(device.id.nvml_index)}",
        "hw.model": _text(device.name),
        "hw.vendor": "NVIDIA",
        "hw.serial_number": _text(device.serial),
        "hw.driver_version": _text(snapshot.driver_version),
        "hw.firmware_version": _text(device.vbios_version),
    }
    return {name: word for name, word in known.items() if word}


def _text(reading: Reading[Any]) -> str:
    return "" if isinstance(reading, Missing) else str(reading)


def _braced(labels: Labels) -> str:
    return f"{{{_joined(labels)}}}" if labels else ""


def _joined(labels: Labels) -> str:
    return ",".join(f'{name}="{_escape(word)}"' for name, word in labels.items())


def _escape(word: str) -> str:
    """The text with backslash, quote and line end escaped for the text exposition format."""
    if word.isalnum():
        return word
    cleaned = one_line(word, _MAX_LABEL_CHARACTERS)
    return cleaned.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
