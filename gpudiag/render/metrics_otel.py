"""A machine's numbers under OpenTelemetry's names for hardware."""

from typing import Any

from gpudiag.model.device import Device, Snapshot
from gpudiag.render.exposition import Labels, text_of
from gpudiag.render.metrics import METRICS


def otel_document(snapshot: Snapshot) -> dict[str, Any]:
    """The numbers under OpenTelemetry's names for hardware: metrics with data points and attributes."""
    metrics: dict[str, dict[str, Any]] = {}
    for metric in METRICS:
        for name, chosen in metric.otel:
            points = [
                {"attributes": {**_otel_identity(device, snapshot), **name.attributes}, "value": value}
                for device in snapshot.devices
                for labels, value in metric.samples(device)
                if chosen.items() <= labels.items()
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


def _otel_identity(device: Device, snapshot: Snapshot) -> Labels:
    known = {
        "hw.id": text_of(device.id.uuid),
        "hw.type": "gpu",
        "hw.name": f"GPU {text_of(device.id.nvml_index)}",
        "hw.model": text_of(device.name),
        "hw.vendor": "NVIDIA",
        "hw.serial_number": text_of(device.serial),
        "hw.driver_version": text_of(snapshot.driver_version),
        "hw.firmware_version": text_of(device.vbios_version),
    }
    return {name: word for name, word in known.items() if word}
