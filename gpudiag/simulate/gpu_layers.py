"""One GPU from the layers of machine files: its readings, what is missing, and how the bus shows it."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from gpudiag.errors import UsageError
from gpudiag.model.device import Device, DeviceId
from gpudiag.model.reading import MissingReason
from gpudiag.simulate.blueprint import GpuBlueprint
from gpudiag.simulate.build import build
from gpudiag.simulate.names import nearest_hint
from gpudiag.simulate.scenario import CallFault, SimulatedGpu

# Which GPU it is in each source's count follows from the machine, so no file says it.
# The subsystem's id is said once for NVML and the bus, among the keys of a GPU.
DERIVED_READINGS = ("nvml_index", "cuda_ordinal", "responding", "pci_subsystem_id")
READINGS = tuple(
    field.name
    for field in (*fields(DeviceId), *fields(Device))
    if field.name not in ("id", *DERIVED_READINGS)
)
_IDENTITY = ("uuid", "bus_id", "name")  # what no machine may leave out
_BETWEEN_GPUS = "peers"  # the library answers it from the place of the GPUs
_GPU_KEYS = (
    "calls", "minor_number", "pci_device_id", "pci_subsystem_id", "pci_class_id", "kernel_driver", "on_bus",
    "missing",
)  # fmt: skip

_ECC_COUNTERS = ("corrected_volatile", "uncorrected_volatile", "corrected_aggregate", "uncorrected_aggregate")
_LINK_COUNTERS = ("crc_flit_errors", "crc_data_errors", "replay_errors", "recovery_errors")
_PCIE_ERRORS = (
    "correctable", "nonfatal", "fatal", "bad_tlp", "bad_dllp", "naks_received", "naks_sent",
)  # fmt: skip
_BANKS = ("max_banks", "high_banks", "partial_banks", "low_banks", "none_banks")


def build_gpu(layers: list[dict[str, Any]], name: str, index: int) -> GpuBlueprint:
    """The GPU that those layers describe, lowest first; `index` is its place on the machine.

    A reading that no layer gives is not supported by it.

    Raises:
        UsageError: an unknown key, a GPU without an identity, or a reading that does not fit.
    """
    readings: dict[str, Any] = {}
    missing: dict[str, str] = {}
    others: dict[str, Any] = {}
    for layer in layers:
        said_missing = _missing(layer["missing"], name)
        for key, value in layer.items():
            if key in READINGS:
                readings[key] = _expand(key, value, name)
                missing.pop(key, None)
            elif key in _GPU_KEYS:
                others[key] = value
            else:
                raise UsageError(
                    f"{name}: a GPU has no {key!r}", hint=nearest_hint(key, (*READINGS, *_GPU_KEYS))
                )
        for key in said_missing:
            readings.pop(key, None)
        missing |= said_missing
    unsaid = [key for key in READINGS if key not in readings and key not in missing and key != _BETWEEN_GPUS]
    forgotten = [key for key in _IDENTITY if key in unsaid]
    if forgotten:
        raise UsageError(f"{name}: GPU {index} has neither a value nor a reason for {', '.join(forgotten)}")
    missing |= dict.fromkeys(unsaid, MissingReason.NOT_SUPPORTED.value)
    return _blueprint(readings, missing, others, index, name)


def _blueprint(
    readings: dict[str, Any], missing: dict[str, str], others: dict[str, Any], index: int, name: str
) -> GpuBlueprint:
    gpu = SimulatedGpu(
        readings=readings,
        missing=missing,
        faults=tuple(build(CallFault, call, name) for call in others.get("calls", ())),
        minor_number=others.get("minor_number", index if others.get("on_bus", True) else None),
        pci_device_id=others.get("pci_device_id"),
        pci_subsystem_id=others.get("pci_subsystem_id"),
    )
    return GpuBlueprint(
        gpu=gpu,
        pci_class_id=others.get("pci_class_id", "0302"),
        kernel_driver=others.get("kernel_driver", "nvidia"),
        on_bus=others.get("on_bus", True),
    )


def _missing(said: Mapping[str, Any], name: str) -> dict[str, str]:
    """Reading -> reason, from the file's reason -> list of readings."""
    missing = {}
    for reason, names in said.items():
        if reason not in list(MissingReason):
            raise UsageError(f"{name}: no reason {reason!r}", hint=nearest_hint(reason, MissingReason))
        for reading in names:
            if reading not in READINGS:
                raise UsageError(f"{name}: no reading {reading!r}", hint=nearest_hint(reading, READINGS))
            missing[reading] = reason
    return missing


def _expand(reading: str, value: Any, name: str) -> Any:
    """The reading in full, where the file may write it in short."""
    if reading not in _EXPANDED:
        return value
    try:
        return _EXPANDED[reading](value)
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{name}: {reading} does not fit: {value!r}", hint="docs/simulate.md shows how"
        ) from error


def _ecc_locations(entries: list[Any]) -> list[dict[str, Any]]:
    """A place's name alone means that nothing was counted there."""
    return [
        {"location": entry, **dict.fromkeys(_ECC_COUNTERS, 0)} if isinstance(entry, str) else entry
        for entry in entries
    ]


def _nvlinks(entry: Any) -> list[dict[str, Any]]:
    """`{ count, remote_bus_ids, counters }` in short; links are dealt out to the far ends in turn."""
    if isinstance(entry, list):
        return entry
    remotes = entry.get("remote_bus_ids")
    counted = entry.get("counters", True)
    links = []
    for link in range(entry["count"]):
        said: dict[str, Any] = {"link": link, "active": True}
        said["remote_bus_id"] = remotes[link % len(remotes)] if remotes else None
        said |= dict.fromkeys(_LINK_COUNTERS, 0 if counted else None)
        missing = {key: "not_supported" for key, value in said.items() if value is None}
        links.append({**said, "missing": missing} if missing else said)
    return links


def _histogram(banks: Mapping[str, int]) -> dict[str, int]:
    return {**dict.fromkeys(_BANKS, 0), **banks}


def _throttle_seconds(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Kinds that are not named were never the reason; boards without such limits do not count them."""
    uncounted = {"board_limit": None, "reliability": None}
    missing = {name: "not_supported" for name in uncounted if name not in entry}
    return {"power": 0.0, "thermal": 0.0, "sync_boost": 0.0, **uncounted, **entry, "missing": missing}


def _pcie_errors(entry: Mapping[str, int]) -> dict[str, int]:
    """Kinds that are not named were not seen."""
    return {**dict.fromkeys(_PCIE_ERRORS, 0), **entry}


def _fabric(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Health and faults that are not said are not known: switches of NVLink 4 report none."""
    said = {"clique_id": None, "cluster_uuid": None, "health": None, "faults": None, **entry}
    missing = {name: "not_supported" for name, value in said.items() if value is None}
    return {**said, "missing": missing} if missing else said


_EXPANDED: dict[str, Callable[[Any], Any]] = {
    "ecc_locations": _ecc_locations,
    "fabric": _fabric,
    "pcie_errors": _pcie_errors,
    "throttle_seconds": _throttle_seconds,
    "nvlinks": _nvlinks,
    "row_remap_histogram": _histogram,
}
