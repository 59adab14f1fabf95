"""A machine's numbers for Prometheus in dcgm-exporter's names, units and labels.

As there, what a MIG instance has of its own is a series with GPU_I_PROFILE and GPU_I_ID. What it has not
(temperature, power, clocks) is one series of the GPU: dcgm-exporter repeats it, and sums count it as often.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType
from typing import Literal

from gpudiag.model.device import Device, MigInstance, Snapshot
from gpudiag.model.kernel_log import KernelEventKind
from gpudiag.model.owners import GpuOwners
from gpudiag.model.reading import Missing, MissingReason, value_or
from gpudiag.model.service import TimelineEntry, TimelineKind
from gpudiag.reference.declaration import Dcgm
from gpudiag.reference.xid import xids
from gpudiag.render.exposition import Labels, Page, joined, number, text_of
from gpudiag.render.metrics import DCGM_METRICS, MIG_METRICS, Sampled
from gpudiag.render.metrics_mig import gpu_instances, profile_of
from gpudiag.render.metrics_owners import dcgm_owner_labels, owners_of

# dcgm-exporter 4.8.2 and before write `Hostname`, its main branch `hostname` since 2026-05-12 (#655).
HostLabel = Literal["Hostname", "hostname", "both"]

_OFF_THE_BUS = 79  # the Xid with which a GPU is lost
_ACTION_CHANGED = 154  # reports the action for the Xid before it, and must not hide that Xid
_XID_WINDOW = timedelta(minutes=5)  # dcgm-exporter's --xid-count-window-size
_OF_INSTANCES = {name.full_name: metric for metric in MIG_METRICS for name, _ in metric.dcgm}

# A thing that has readings, and the labels of each series that it has of a metric.
_Row = tuple[Device | MigInstance, list[str]]


def render_dcgm(
    snapshot: Snapshot,
    events: tuple[TimelineEntry, ...] = (),
    owners: Mapping[str, GpuOwners] = MappingProxyType({}),
    *,
    shares: bool = False,
    host_label: HostLabel = "Hostname",
    last_indices: Mapping[str, int] = MappingProxyType({}),
    openmetrics: bool = False,
) -> str:
    """The machine in dcgm-exporter's names, units and labels.

    `owners` and `last_indices` are by UUID. With `shares` a shared GPU has a series for each container.
    """
    page = Page(openmetrics=openmetrics)
    labelling = _Labelling(snapshot, owners, last_indices, host_label, shares)
    labels = [labelling.of_gpu(device) for device in snapshot.devices]
    rows = [
        (device, [joined(one) for one in several])
        for device, several in zip(snapshot.devices, labels, strict=True)
    ]
    parts = [labelling.of_instances(device) for device in snapshot.devices]
    for metric in DCGM_METRICS:
        for name, chosen in metric.dcgm:
            lines = _lines(metric, name, chosen, rows, parts)
            page.add_lines(name.full_name, name.kind, name.text, lines)
    count = float(len(snapshot.devices))
    counts = [(one, count) for several in labels for one in several]
    page.add("DCGM_FI_DEV_COUNT", "gauge", "Number of GPUs on the node.", counts)
    _add_xids(page, snapshot, events, labels)
    return page.text()


def _lines(
    metric: Sampled, name: Dcgm, chosen: Labels, rows: Sequence[_Row], parts: Sequence[list[_Row]]
) -> list[str]:
    """The samples with these labels: of each GPU, or of its MIG instances where they have such samples."""
    of_instances = _OF_INSTANCES.get(name.full_name)
    lines: list[str] = []
    for row, instances in zip(rows, parts, strict=True):
        own = [] if of_instances is None else _samples(of_instances, name, chosen, instances)
        lines += own or _samples(metric, name, chosen, [row])
    return lines


def _samples(metric: Sampled, name: Dcgm, chosen: Labels, rows: Iterable[_Row]) -> list[str]:
    full_name = name.full_name
    return [
        f"{full_name}{{{base}}} {number(value * name.scale)}"
        for thing, several in rows
        for labels, value in metric.samples(thing)
        if chosen.items() <= labels.items()
        for base in several
    ]


def _add_xids(
    page: Page, snapshot: Snapshot, events: Sequence[TimelineEntry], labels: Sequence[list[Labels]]
) -> None:
    """Add each GPU's last Xid, and how many there were lately.

    As in dcgm-exporter the latter only where there were.
    """
    xids = [entry for entry in events if entry.kind is TimelineKind.XID]
    last: dict[str | None, int] = {}
    for entry in xids:
        if entry.xid_code != _ACTION_CHANGED or entry.uuid not in last:
            last[entry.uuid] = entry.xid_code or 0
    codes, counted = [], []
    for device, several in zip(snapshot.devices, labels, strict=True):
        uuid = text_of(device.id.uuid)
        code = _last_xid(device, snapshot, last.get(uuid, 0))
        codes += [({**one, **_error_labels(code)}, float(code)) for one in several if code is not None]
        lately: dict[int, int] = {}
        for entry in xids:
            if entry.uuid == uuid and snapshot.taken_at - entry.at <= _XID_WINDOW:
                lately[entry.xid_code or 0] = lately.get(entry.xid_code or 0, 0) + 1
        window = str(int(_XID_WINDOW.total_seconds() * 1000))
        counted += [
            ({**one, "window_size_in_ms": window, "xid": str(xid)}, float(count))
            for xid, count in lately.items()
            for one in several
        ]
    page.add("DCGM_FI_DEV_XID_ERRORS", "gauge", "Value of the last XID error encountered.", codes)
    page.add(
        "DCGM_EXP_XID_ERRORS_COUNT",
        "gauge",
        "Count of XID Errors within user-specified time window.",
        counted,
    )


def _error_labels(code: int) -> Labels:
    """The Xid in words, as dcgm-exporter has it beside the number."""
    known = xids().get(code)
    words = "No Error" if code == 0 else "Unknown Error" if known is None else known.meaning
    return {"err_code": str(code), "err_msg": words}


def _last_xid(device: Device, snapshot: Snapshot, last: int) -> int | None:
    """The GPU's last Xid, 0 for none; None for one that is silent and not reported as lost.

    From NVML's events, of a lost GPU from the kernel log too; a lost one without a code counts as off the
    bus.
    """
    if device.responding is True or last not in (0, _ACTION_CHANGED):
        return last
    why = device.responding
    if not isinstance(why, Missing) or why.reason is not MissingReason.DEVICE_LOST:
        return None
    bus_id = text_of(device.id.bus_id)
    logged = [
        event.xid_code
        for event in value_or(snapshot.kernel_log, ())
        if event.kind is KernelEventKind.XID and event.bus_id == bus_id
        if event.xid_code not in (None, _ACTION_CHANGED)
    ]
    return logged[-1] if logged else _OFF_THE_BUS


@dataclass(frozen=True, slots=True)
class _Labelling:
    """How the series of a scrape are labelled."""

    snapshot: Snapshot
    owners: Mapping[str, GpuOwners]
    last_indices: Mapping[str, int]
    host_label: HostLabel
    shares: bool

    def of_gpu(self, device: Device) -> list[Labels]:
        """The labels of each series that the GPU has of a metric: one, or one for each who shares it."""
        base = self._base(device, {})
        owned = dcgm_owner_labels(owners_of(device, self.owners), shares=self.shares)
        return [{**base, **more} for more in owned]

    def of_instances(self, device: Device) -> list[_Row]:
        """The GPU's MIG instances, each with the labels of its series."""
        rows: list[_Row] = []
        for instance in gpu_instances(device):
            part = {"GPU_I_PROFILE": profile_of(instance), "GPU_I_ID": text_of(instance.gpu_instance_id)}
            base = self._base(device, part)
            number_of_instance = value_or(instance.gpu_instance_id, -1)
            whose = owners_of(device, self.owners)
            owned = dcgm_owner_labels(whose, number_of_instance, shares=self.shares)
            rows.append((instance, [joined({**base, **more}) for more in owned]))
        return rows

    def _base(self, device: Device, part: Labels) -> Labels:
        """The labels of dcgm-exporter, in its order and spelling; `part` names a MIG instance."""
        uuid, bus_id = text_of(device.id.uuid), text_of(device.id.bus_id)
        index = text_of(device.id.nvml_index) or str(self.last_indices.get(uuid, ""))
        names = ("Hostname", "hostname") if self.host_label == "both" else (self.host_label,)
        return {
            "gpu": index,
            "UUID": uuid,
            "pci_bus_id": bus_id.upper(),
            "device": f"nvidia{index}",
            "modelName": text_of(device.name),
            **part,
            **dict.fromkeys(names, self.snapshot.host),
            "DCGM_FI_DRIVER_VERSION": text_of(self.snapshot.driver_version),
        }
