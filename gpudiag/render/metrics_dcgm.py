"""A machine's numbers for Prometheus in dcgm-exporter's names, units and labels, for boards and alerts that expect them."""

from collections.abc import Mapping
from types import MappingProxyType

from gpudiag.model.device import Device, Snapshot
from gpudiag.model.owners import GpuOwners
from gpudiag.model.reading import value_or
from gpudiag.model.service import TimelineEntry, TimelineKind
from gpudiag.render.exposition import Labels, Page, joined, number, text_of
from gpudiag.render.metrics import METRICS
from gpudiag.render.metrics_owners import dcgm_owner_labels, owners_of


def render_dcgm(
    snapshot: Snapshot,
    events: tuple[TimelineEntry, ...] = (),
    owners: Mapping[str, GpuOwners] = MappingProxyType({}),
    *,
    shares: bool = False,
) -> str:
    """The machine in dcgm-exporter's names, units and labels, for dashboards and alerts that expect them.

    `owners` by UUID; with `shares`, a GPU that several containers share has a series for each of them.
    """
    page = Page()
    rows = [_dcgm_rows(device, snapshot, owners, shares=shares) for device in snapshot.devices]
    bases = [[joined(labels) for labels in row] for row in rows]
    for metric in METRICS:
        for name in metric.dcgm:
            lines = [
                f"{name.name}{{{base}}} {number(value * name.scale)}"
                for device, several in zip(snapshot.devices, bases, strict=True)
                for labels, value in metric.samples(device)
                if name.labels.items() <= labels.items()
                for base in several
            ]
            page.add_lines(name.name, name.kind, name.text, lines)
    last = {entry.uuid: entry.xid_code for entry in events if entry.kind is TimelineKind.XID}
    page.add(
        "DCGM_FI_DEV_XID_ERRORS",
        "gauge",
        "Value of the last XID error encountered.",
        [
            (labels, float(last.get(value_or(device.id.uuid, "")) or 0))
            for device, row in zip(snapshot.devices, rows, strict=True)
            if device.responding is True
            for labels in row
        ],
    )
    return page.text()


def _dcgm_rows(
    device: Device, snapshot: Snapshot, owners: Mapping[str, GpuOwners], *, shares: bool
) -> list[Labels]:
    """The labels of each series that the GPU has of a metric: one, or one for each of those who share it."""
    base = _dcgm_labels(device, snapshot)
    return [{**base, **more} for more in dcgm_owner_labels(owners_of(device, owners), shares=shares)]


def _dcgm_labels(device: Device, snapshot: Snapshot) -> Labels:
    """The labels of dcgm-exporter, in its order and spelling."""
    bus_id = text_of(device.id.bus_id)
    return {
        "gpu": text_of(device.id.nvml_index),
        "UUID": text_of(device.id.uuid),
        "pci_bus_id": bus_id.upper(),
        "device": f"nvidia{text_of(device.id.nvml_index)}",
        "modelName": text_of(device.name),
        "Hostname": snapshot.host,
        "DCGM_FI_DRIVER_VERSION": text_of(snapshot.driver_version),
    }
