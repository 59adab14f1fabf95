"""Snapshots of simulated machines, made of their readings alone: no program is started, and no library is
asked.
"""

from dataclasses import replace

from gpudiag.model.codec import read_sheet
from gpudiag.model.device import Device, Snapshot
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.simulate.loader import load_scenario
from tests.unit.model.nouns import make_snapshot

_LOST = Missing(MissingReason.DEVICE_LOST, "GPU is lost (NVML 15)")


def simulated_snapshot(spec: str) -> Snapshot:
    """The machine of that specification as the service sees it, from the second look on."""
    scenario = load_scenario(spec)
    devices = []
    for index, gpu in enumerate(scenario.gpus):
        lost = gpu.missing.get("power_draw_watts") == "device_lost"
        readings = {**gpu.readings, "processes": [], "nvml_index": index}
        missing = {name: reason for name, reason in gpu.missing.items() if name not in readings}
        if lost:
            readings = {
                name: readings[name] for name in ("uuid", "bus_id", "name", "nvml_index") if name in readings
            }
        directions = [readings.get(f"nvlink_{way}_bytes_per_second") for way in ("transmitted", "received")]
        if None not in directions:  # what the probe makes of two looks at the counters
            readings["nvlink_throughput_bytes_per_second"] = sum(directions)
        device = read_sheet(
            Device,
            {"responding": True, **readings, "missing": {**missing, "cuda_ordinal": "not_asked"}},
            _LOST if lost else Missing(MissingReason.NOT_ASKED),
        )
        devices.append(device if not lost else _silent(device))
    return make_snapshot(*devices, host=scenario.hostname, driver_version=scenario.nvml.driver_version)


def _silent(device: Device) -> Device:
    return replace(device, responding=_LOST)
