"""A machine's numbers for Prometheus in gpudiag's own names: GPUs, checks, Xids, and the service itself.

What is missing has no series. Identity is in one `_info` series, and the UUID on series that alerts start
from; the full scrape has it on all, and also what is constant or follows from the rest.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpudiag import __version__
from gpudiag.model.device import Device, GpuProcess, Snapshot
from gpudiag.model.finding import CheckResult, Finding, Outcome
from gpudiag.model.owners import GpuOwners
from gpudiag.model.reading import Missing, value_or
from gpudiag.model.service import XidTally
from gpudiag.render.exposition import Labels, Page, joined, more, number, text_of
from gpudiag.render.finding_metrics import FINDING, count_findings
from gpudiag.render.metrics import METRICS, Sampled
from gpudiag.render.metrics_mig import add_mig
from gpudiag.render.metrics_owners import add_owners

_UP = "gpudiag_gpu_up"  # what an alert on a lost GPU starts from
_XID_EVENTS = (
    "gpudiag_gpu_xid_events_total",
    "How often NVML reported that Xid, as far as the timeline shows.",
)
_XID_LAST = ("gpudiag_gpu_xid_last_timestamp_seconds", "Time of the last report of that Xid.")


@dataclass(frozen=True, slots=True)
class ServiceNumbers:
    """The service's numbers about itself and the checks, beside those of the GPUs."""

    sampler_state: str
    fresh: bool  # whether the numbers are of now
    last_good_at: float | None  # Unix time of the last tick; None where there is nothing to collect
    tick_seconds: float | None
    restarts: int
    stuck_children: int
    stream_clients: int
    nvml_state: str
    health: dict[str, str] = field(default_factory=dict)  # by UUID: ok, warn, fail or error
    results: tuple[CheckResult, ...] = ()
    findings: tuple[Finding, ...] = ()  # present now
    run_findings: tuple[tuple[str, Finding], ...] = ()  # of runs, each behind the kind of run
    xids: tuple[XidTally, ...] = ()
    last_indices: Mapping[str, int] = field(default_factory=dict)  # by UUID, of every GPU that was seen
    elsewhere: frozenset[str] = frozenset()  # UUIDs of GPUs that have another one's NVML index now
    active_runs: int = 0
    processes: bool = False  # one series for each process: they come and go
    owners: Mapping[str, GpuOwners] = field(default_factory=dict)  # by UUID


def render_metrics(
    snapshot: Snapshot, numbers: ServiceNumbers, *, full: bool = False, openmetrics: bool = False
) -> str:
    """The machine in gpudiag's own names, as text or as OpenMetrics; `full`: with every series."""
    page = Page(openmetrics=openmetrics)
    build = {"version": __version__, "host": snapshot.host}
    if snapshot.simulated:
        build["simulated"] = snapshot.simulated
    page.add(
        "gpudiag_build_info", "info", "The version of gpudiag that answers, and its host.", [(build, 1.0)]
    )
    page.add(
        "gpudiag_gpu_info",
        "info",
        "The identity of each GPU.",
        [({**_device_labels(device), **_identity(device, snapshot)}, 1.0) for device in snapshot.devices],
    )
    host, seen = {"host": snapshot.host}, numbers.last_indices
    identities = [_device_labels(device, seen) for device in snapshot.devices]
    bases = identities if full else [_short_labels(device, numbers.elsewhere) for device in snapshot.devices]
    whole, short = [joined({**labels, **host}) for labels in identities], [joined(labels) for labels in bases]
    for metric in METRICS:
        family = metric.family
        if full or family.core:
            rare = frozenset() if full else metric.rare
            lines = _lines(metric, snapshot.devices, whole if metric.name == _UP else short, rare)
            page.add_lines(metric.name, family.kind, family.text, lines)
    add_mig(page, list(zip(snapshot.devices, identities, bases, strict=True)), full=full)
    _add_status(page, snapshot, numbers)
    found = count_findings(numbers.findings, snapshot, seen, numbers.run_findings)
    page.add(FINDING[0], "gauge", FINDING[1], found)
    _add_checks(page, numbers.results, host, full=full)
    _add_xids(page, numbers, host)
    add_owners(page, list(zip(snapshot.devices, identities, strict=True)), numbers.owners)
    if numbers.processes:
        _add_processes(page, snapshot.devices)
    _add_service(page, numbers, host)
    return page.text()


def _lines(metric: Sampled, devices: tuple[Device, ...], bases: list[str], rare: frozenset[str]) -> list[str]:
    """The samples of one metric without the rare ones; a device's labels are rendered once for all."""
    name = metric.name
    return [
        f"{name}{{{base}{more(labels)}}} {number(value)}"
        for device, base in zip(devices, bases, strict=True)
        for labels, value in metric.samples(device)
        if rare.isdisjoint(labels.values())
    ]


def _add_status(page: Page, snapshot: Snapshot, numbers: ServiceNumbers) -> None:
    samples = [
        (
            {
                **_device_labels(device, numbers.last_indices),
                "host": snapshot.host,
                "state": numbers.health.get(text_of(device.id.uuid), "error"),
            },
            1.0,
        )
        for device in snapshot.devices
    ]
    page.add("gpudiag_gpu_status", "gauge", "1 for the GPU's state: ok, warn, fail or error.", samples)


def _add_checks(page: Page, results: tuple[CheckResult, ...], host: Labels, *, full: bool) -> None:
    """Add the number of checks per outcome, and each check neither passed nor skipped.

    The full scrape has all.
    """
    counts = Counter(result.outcome for result in results)
    counted = [({**host, "outcome": outcome.value}, float(counts[outcome])) for outcome in Outcome if results]
    page.add("gpudiag_checks", "gauge", "Checks by outcome; skip did not apply.", counted)
    shown = [result for result in results if full or result.outcome not in (Outcome.PASS, Outcome.SKIP)]
    statuses = [({**host, "check": result.check, "outcome": result.outcome.value}, 1.0) for result in shown]
    page.add("gpudiag_check_status", "gauge", "1 for the outcome of a check.", statuses)


def _add_xids(page: Page, numbers: ServiceNumbers, host: Labels) -> None:
    counts, last = [], []
    for tally in numbers.xids:
        index = numbers.last_indices.get(tally.uuid or "", tally.nvml_index)
        labels = {
            "gpu": "" if index is None else str(index),
            "uuid": tally.uuid or "",
            "xid": str(tally.xid_code),
            **host,
        }
        counts.append((labels, float(tally.count)))
        last.append((labels, tally.last_at.timestamp()))
    page.add(_XID_EVENTS[0], "counter", _XID_EVENTS[1], counts)
    page.add(_XID_LAST[0], "gauge", _XID_LAST[1], last)


def _add_processes(page: Page, devices: tuple[Device, ...]) -> None:
    samples = [
        ({**_device_labels(device), **_process_labels(process)}, float(process.memory_used_bytes))
        for device in devices
        for process in value_or(device.processes, ())
        if not isinstance(process.memory_used_bytes, Missing)
    ]
    page.add("gpudiag_process_memory_bytes", "gauge", "Memory that a process holds on a GPU.", samples)


def _add_service(page: Page, numbers: ServiceNumbers, host: Labels) -> None:
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
            page.add(f"gpudiag_{name}", "gauge", text, [(host, value)])
    page.add(
        "gpudiag_sampler_restarts_total",
        "counter",
        "How often the sampler was replaced.",
        [(host, float(numbers.restarts))],
    )
    page.add(
        "gpudiag_sampler_state",
        "gauge",
        "1 for the sampler's state.",
        [({**host, "state": numbers.sampler_state}, 1.0)],
    )
    page.add(
        "gpudiag_nvml_state",
        "gauge",
        "1 for how NVML answers.",
        [({**host, "state": numbers.nvml_state}, 1.0)],
    )


def _device_labels(device: Device, last_indices: Mapping[str, int] | None = None) -> Labels:
    """The GPU's index and UUID; of one that NVML does not list the index that it had, where that is given."""
    uuid = text_of(device.id.uuid)
    had = None if last_indices is None else last_indices.get(uuid)
    listed = text_of(device.id.nvml_index)
    return {"gpu": listed or (text_of(device.id.bus_id) if had is None else str(had)), "uuid": uuid}


def _short_labels(device: Device, elsewhere: frozenset[str]) -> Labels:
    """The index alone, which identifies the GPU as long as no other GPU has had that index."""
    labels = _device_labels(device)
    return labels if labels["uuid"] in elsewhere else {"gpu": labels["gpu"]}


def _identity(device: Device, snapshot: Snapshot) -> Labels:
    known = {
        "name": text_of(device.name),
        "pci_bus_id": text_of(device.id.bus_id),
        "serial": text_of(device.serial),
        "vbios": text_of(device.vbios_version),
        "driver_version": text_of(snapshot.driver_version),
        "cuda_version": text_of(snapshot.cuda_driver_version),
        "arch": text_of(device.architecture),
        "compute_cap": text_of(device.compute_capability),
        "memory_kind": text_of(device.memory_kind),
        "mig_mode": text_of(device.mig_mode),
    }
    return {name: word for name, word in known.items() if word}


def _process_labels(process: GpuProcess) -> Labels:
    return {
        "pid": str(process.pid),
        "user": text_of(process.user),
        "command": text_of(process.command),
        "container": text_of(process.container_id),
    }
