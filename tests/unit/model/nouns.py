"""Nouns for tests: a device with every reading missing for one reason, and snapshots around it."""

from dataclasses import fields
from datetime import datetime
from typing import Any

from gpudiag.compat import UTC
from gpudiag.model.device import Device, DeviceId, Snapshot, SourceState, SourceStatus
from gpudiag.model.host import Machine
from gpudiag.model.reading import Missing, MissingReason

NOT_SUPPORTED = Missing(MissingReason.NOT_SUPPORTED)
TAKEN_AT = datetime(2026, 11, 20, 21, 4, 5, 123000, tzinfo=UTC)


def make_device(nvml_index: int = 0, **readings: Any) -> Device:
    """A device that supports nothing but the readings that are given."""
    identity = DeviceId(f"GPU-{nvml_index}", f"00000000:{nvml_index + 0x19:02x}:00.0", nvml_index)
    values: dict[str, Any] = {field.name: NOT_SUPPORTED for field in fields(Device)}
    return Device(**{**values, "id": identity, "responding": True, **readings})


def make_machine(**facts: Any) -> Machine:
    """A machine of which nothing is known but the facts that are given."""
    values: dict[str, Any] = {field.name: NOT_SUPPORTED for field in fields(Machine)}
    return Machine(**{**values, "hostname": "a1", "container": None, "allocation": {}, **facts})


WITHOUT_LIBRARY = (SourceStatus("nvml", SourceState.LIBRARY_ABSENT),)  # no driver at all


def make_snapshot(*devices: Device, **values: Any) -> Snapshot:
    """A snapshot of a machine with those devices, on which only NVML was asked."""
    status = SourceStatus(
        "nvml", SourceState.OK if devices else SourceState.NO_DEVICES, None, 0.012, len(devices)
    )
    defaults: dict[str, Any] = {
        "host": "a1",
        "taken_at": TAKEN_AT,
        "simulated": None,
        "driver_version": "580.105.08",
        "cuda_driver_version": "13.0",
        "nvml_version": "13.580.105.08",
        "sources": (status,),
        "devices": devices,
        "views": (),
        "disagreements": (),
        "torch": Missing(MissingReason.NOT_ASKED),
        "machine": make_machine(),
    }
    return Snapshot(**{**defaults, **values})
