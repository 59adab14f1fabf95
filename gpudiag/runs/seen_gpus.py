"""The GPUs that a service has seen: one that its driver lists no more keeps its row, and is missed.

A machine with eight GPUs of which one vanishes is not a machine with seven, whatever indices the others get.
"""

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace

from gpudiag.checks.gone import known_gpus_of
from gpudiag.model.device import Device, Snapshot
from gpudiag.model.history import KnownGpus
from gpudiag.model.reading import Missing, MissingReason, Reading
from gpudiag.runs.live import key_of

# Who a GPU is stays known.
_KEPT = ("id", "name", "serial", "vbios_version", "board_part_number", "architecture", "compute_capability")
_REST = tuple(field.name for field in fields(Device) if field.name not in _KEPT)
MAX_GPUS = 64  # instances of a virtual machine that come and go


class SeenGpus:
    """Every GPU that has answered since the service started, by the name that it is remembered by."""

    def __init__(self) -> None:
        """Nothing has been seen yet."""
        self._devices: dict[str, Device] = {}
        self._known: KnownGpus | None = None

    def note(self, snapshot: Snapshot) -> None:
        """Remember the GPUs that answer now."""
        for device in snapshot.devices:
            if device.responding is True:
                key = _identity(device)
                self._devices.pop(key, None)  # the newest last
                self._devices[key] = device
        while len(self._devices) > MAX_GPUS:
            del self._devices[next(iter(self._devices))]
        if snapshot.devices:
            now = known_gpus_of(snapshot)
            before = () if self._known is None else self._known.gpus
            here = {gpu.uuid for gpu in now.gpus}
            seen = (*(gpu for gpu in before if gpu.uuid not in here), *now.gpus)
            self._known = replace(now, gpus=seen[-MAX_GPUS:])

    def recognise(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot, in which a GPU that is no more than a place on the bus is known by who it was.

        Without its driver a GPU has neither UUID nor index; metrics and page go on to tell it by them.
        """
        by_place = {device.id.bus_id: device for device in self._devices.values()}
        return replace(snapshot, devices=tuple(_recognised(device, by_place) for device in snapshot.devices))

    def known(self, noted: Reading[KnownGpus]) -> Reading[KnownGpus]:
        """What the last good run noted, and what was seen since."""
        if self._known is None:
            return noted
        if isinstance(noted, Missing):
            return self._known
        here = {gpu.uuid for gpu in self._known.gpus}
        return replace(
            self._known, gpus=(*(gpu for gpu in noted.gpus if gpu.uuid not in here), *self._known.gpus)
        )

    def rows_of_missing(self, snapshot: Snapshot) -> tuple[Device, ...]:
        """A row for each GPU that was seen and that the driver does not list: who it is, and why nothing is known."""
        here = {key for device in snapshot.devices for key in _names(device)}
        indices = {device.id.nvml_index for device in snapshot.devices}
        gone = [device for device in self._devices.values() if not here & set(_names(device))]
        why = _why(snapshot)
        return tuple(_row(device, why, indices) for device in sorted(gone, key=key_of))


def _recognised(device: Device, by_place: Mapping[Reading[str], Device]) -> Device:
    seen = by_place.get(device.id.bus_id)
    if seen is None or not isinstance(device.id.uuid, Missing):
        return device
    known = {name: getattr(seen, name) for name in _KEPT if isinstance(getattr(device, name), Missing)}
    identity = replace(seen.id, cuda_ordinal=device.id.cuda_ordinal)
    return replace(device, **{**known, "id": identity})


def _why(snapshot: Snapshot) -> Missing:
    """Why a GPU that was seen gives nothing now."""
    if isinstance(snapshot.driver_version, Missing):
        return Missing(
            snapshot.driver_version.reason, snapshot.source("nvml").reason or "NVML does not answer"
        )
    return Missing(MissingReason.SOURCE_ABSENT, "the driver does not list it any more")


def _row(device: Device, why: Missing, indices: Iterable[Reading[int]]) -> Device:
    identity = replace(device.id, cuda_ordinal=why)
    if identity.nvml_index in indices:  # the others have moved up
        identity = replace(identity, nvml_index=why)
    return replace(device, id=identity, **dict.fromkeys(_REST, why))


def _identity(device: Device) -> str:
    return str(device.id.uuid) if not isinstance(device.id.uuid, Missing) else key_of(device)


def _names(device: Device) -> tuple[str, ...]:
    """What a row may be known by; a GPU that is lost may have no more than its place."""
    parts = (device.id.uuid, device.id.bus_id)
    return tuple(str(part) for part in parts if not isinstance(part, Missing))
