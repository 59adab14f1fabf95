"""A machine's numbers for Prometheus in dcgm-exporter's names, units and labels, for boards and alerts that expect them."""

from gpudiag.model.device import Device, Snapshot
from gpudiag.model.reading import value_or
from gpudiag.model.service import TimelineEntry, TimelineKind
from gpudiag.render.exposition import Labels, Page, joined, number, text_of
from gpudiag.render.metrics import METRICS


def render_dcgm(snapshot: Snapshot, events: tuple[TimelineEntry, ...] = ()) -> str:
    """The machine in dcgm-exporter's names, units and labels, for dashboards and alerts that expect them."""
    page = Page()
    bases = [joined(_dcgm_labels(device, snapshot)) for device in snapshot.devices]
    for metric in METRICS:
        for name in metric.dcgm:
            lines = [
                f"{name.name}{{{base}}} {number(value * name.scale)}"
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
