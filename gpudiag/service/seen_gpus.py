"""Every GPU that this machine had: the row of one that is missing, and whose NVML index is whose.

A GPU is its UUID; the index is a place in the driver's list, and moves up when a GPU before it vanishes. So
what is known by index alone belongs to the GPU that had that index first, its holder: another GPU at that
index has its own UUID in the data.
"""

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from datetime import datetime, timedelta

from gpudiag.checks.gpu.gone import has_others_instead, in_container, known_gpus_of, share_of
from gpudiag.model.codec import all_missing
from gpudiag.model.device import Device, DeviceId, Snapshot
from gpudiag.model.history import KnownGpu, KnownGpus
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason, Reading
from gpudiag.service.live import key_of
from gpudiag.store.seen_gpus import IndexHolder, SeenMachine

# Readings that identify a GPU, kept while it does not answer.
_KEPT = ("id", "name", "serial", "vbios_version", "board_part_number", "architecture", "compute_capability")
_REST = tuple(field.name for field in fields(Device) if field.name not in _KEPT)
MAX_GPUS = 64  # instances of a virtual machine that come and go
# Prometheus forgets series after 15 days by default; by then nobody takes two GPUs' series for one.
HOLDER_DAYS = timedelta(days=15)


class SeenGpus:
    """Every GPU that has answered, by its UUID, in this service or an earlier one."""

    def __init__(self) -> None:
        """Start without any GPU."""
        self._devices: dict[str, Device] = {}
        self._known: KnownGpus | None = None
        self._holders: dict[int, IndexHolder] = {}
        self._good: Snapshot | None = None

    # --- what was seen

    def note(self, snapshot: Snapshot) -> None:
        """Remember the GPUs that answer now; one whose slot another GPU has taken is no longer missed."""
        answering = [device for device in snapshot.devices if device.responding is True]
        for device in answering:
            key = key_of(device)
            self._devices.pop(key, None)  # the newest last
            self._devices[key] = device
            self._note_holder(device, snapshot)
        self._forget(key for device in answering for key in self._displaced_from_slot(device))
        self._forget(tuple(self._devices)[: len(self._devices) - MAX_GPUS])
        if snapshot.devices:
            now = known_gpus_of(snapshot)
            here = {gpu.uuid for gpu in now.gpus}
            before = () if self._known is None else self._known.gpus
            seen = (*(gpu for gpu in before if gpu.uuid not in here), *now.gpus)
            self._known = replace(now, gpus=seen[-MAX_GPUS:])

    def recall(self, memory: SeenMachine, snapshot: Snapshot) -> None:
        """Add what an earlier service saw, unless that was another machine or another share of this one."""
        known = memory.known
        if not _is_same_place(known, snapshot) or has_others_instead(snapshot, known):
            return
        missed = [
            gpu for gpu in known.gpus if gpu.uuid not in self._devices and not self._has_slot_of(gpu.bus_id)
        ]
        self._devices = {gpu.uuid: _remembered(gpu) for gpu in missed} | self._devices
        now = () if self._known is None else self._known.gpus
        self._known = replace(known, gpus=(*missed, *now)[-MAX_GPUS:])
        recent = (one for one in memory.holders if snapshot.taken_at - one.last_at < HOLDER_DAYS)
        self._holders |= {one.nvml_index: one for one in recent}  # they had it first

    def note_good(self, good: Reading[Snapshot], snapshot: Snapshot) -> None:
        """Take in the machine's last good run: GPUs that it had, and that it did without ones seen before."""
        if isinstance(good, Missing) or good is self._good:
            return
        self._good = good
        known = known_gpus_of(good)
        if not _is_same_place(known, snapshot) or has_others_instead(snapshot, known):
            return
        had = {gpu.uuid for gpu in known.gpus}
        before = () if self._known is None else self._known.gpus
        self._forget([gpu.uuid for gpu in before if gpu.uuid not in had and gpu.last_seen < good.taken_at])
        missed = {
            key_of(device): device
            for device in good.devices
            if device.id.uuid in had - self._devices.keys() and not self._has_slot_of(device.id.bus_id)
        }
        self._devices = missed | self._devices

    def memory(self) -> SeenMachine | None:
        """What a later service should know; None before a GPU was seen."""
        return None if self._known is None else SeenMachine(self._known, tuple(self._holders.values()))

    def _note_holder(self, device: Device, snapshot: Snapshot) -> None:
        index, uuid = device.id.nvml_index, device.id.uuid
        if isinstance(index, Missing) or isinstance(uuid, Missing):
            return
        if index not in self._holders or self._holders[index].uuid == uuid:
            self._holders[index] = IndexHolder(index, uuid, snapshot.taken_at)

    def _displaced_from_slot(self, device: Device) -> list[str]:
        """The GPUs that were where this one is now."""
        if isinstance(device.id.bus_id, Missing):
            return []
        return [
            key
            for key, other in self._devices.items()
            if other.id.bus_id == device.id.bus_id and key != key_of(device)
        ]

    def _has_slot_of(self, bus_id: Reading[str]) -> bool:
        return any(device.id.bus_id == bus_id for device in self._devices.values())

    def _forget(self, keys: Iterable[str]) -> None:
        gone = set(keys)
        self._devices = {key: device for key, device in self._devices.items() if key not in gone}
        if self._known is not None:
            self._known = replace(
                self._known, gpus=tuple(gpu for gpu in self._known.gpus if gpu.uuid not in gone)
            )

    # --- what it adds to a snapshot

    def recognise(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot, with the earlier identity of each GPU that now shows only its place on the bus.

        Without its driver a GPU has neither UUID nor index; metrics and page still identify it by them.
        """
        by_place = {device.id.bus_id: device for device in self._devices.values()}
        return replace(snapshot, devices=tuple(_recognised(device, by_place) for device in snapshot.devices))

    def known(self, noted: Reading[KnownGpus]) -> Reading[KnownGpus]:
        """The GPUs that the last good run noted, and those seen since."""
        if self._known is None:
            return noted
        if isinstance(noted, Missing):
            return self._known
        here = {gpu.uuid for gpu in self._known.gpus}
        return replace(
            self._known, gpus=(*(gpu for gpu in noted.gpus if gpu.uuid not in here), *self._known.gpus)
        )

    def rows_of_missing(self, snapshot: Snapshot) -> tuple[Device, ...]:
        """A row for each GPU that was seen but the driver no longer lists: its identity, and the reason."""
        here = {key for device in snapshot.devices for key in _names(device)}
        indices = {device.id.nvml_index for device in snapshot.devices}
        gone = [device for device in self._devices.values() if not here & set(_names(device))]
        why = _why(snapshot)
        return tuple(_row(device, why, indices) for device in sorted(gone, key=_place))

    def last_indices(self) -> dict[str, int]:
        """The NVML index that each GPU had last, by UUID, also where it is another's by now."""
        return {
            str(device.id.uuid): device.id.nvml_index
            for device in self._devices.values()
            if not isinstance(device.id.nvml_index, Missing)
        }

    def last_seen(self) -> dict[str, datetime]:
        """When each GPU was last seen working, by UUID, by this service or an earlier one."""
        return {} if self._known is None else {gpu.uuid: gpu.last_seen for gpu in self._known.gpus}

    def elsewhere(self, snapshot: Snapshot) -> frozenset[str]:
        """The UUIDs of the GPUs whose NVML index belongs to another one."""
        return frozenset(
            str(device.id.uuid)
            for device in snapshot.devices
            if not isinstance(device.id.nvml_index, Missing)
            and device.id.nvml_index in self._holders
            and self._holders[device.id.nvml_index].uuid != device.id.uuid
        )


def _is_same_place(known: KnownGpus, snapshot: Snapshot) -> bool:
    """Whether those GPUs are of this machine, and of the same share of it."""
    here = (snapshot.host, share_of(snapshot), in_container(snapshot))
    return (known.host, known.share, known.in_container) == here


def _remembered(gpu: KnownGpu) -> Device:
    """The row of a GPU that this service has not seen yet."""
    absent = Missing(MissingReason.SOURCE_ABSENT, "an earlier gpudiag serve saw it")
    identity = DeviceId(
        uuid=gpu.uuid,
        bus_id=gpu.bus_id or absent,
        nvml_index=absent if gpu.nvml_index is None else gpu.nvml_index,
        cuda_ordinal=NOT_ASKED,
    )
    return all_missing(Device, absent, id=identity, name=gpu.name or absent, serial=gpu.serial or absent)


def _recognised(device: Device, by_place: Mapping[Reading[str], Device]) -> Device:
    seen = by_place.get(device.id.bus_id)
    if seen is None or not isinstance(device.id.uuid, Missing):
        return device
    known = {name: getattr(seen, name) for name in _KEPT if isinstance(getattr(device, name), Missing)}
    identity = replace(seen.id, cuda_ordinal=device.id.cuda_ordinal)
    return replace(device, **{**known, "id": identity})


def _why(snapshot: Snapshot) -> Missing:
    """Why a GPU that was seen gives no readings now."""
    if isinstance(snapshot.driver_version, Missing):
        return Missing(
            snapshot.driver_version.reason, snapshot.source("nvml").reason or "NVML does not answer"
        )
    return Missing(MissingReason.SOURCE_ABSENT, "the driver no longer lists it")


def _row(device: Device, why: Missing, indices: Iterable[Reading[int]]) -> Device:
    identity = replace(device.id, cuda_ordinal=why)
    if identity.nvml_index in indices:  # the others have moved up
        identity = replace(identity, nvml_index=why)
    return replace(device, id=identity, **dict.fromkeys(_REST, why))


def _place(device: Device) -> str:
    return str(device.id.bus_id)


def _names(device: Device) -> tuple[str, ...]:
    """The names by which a row may be known; a lost GPU may have only its place on the bus."""
    parts = (device.id.uuid, device.id.bus_id)
    return tuple(str(part) for part in parts if not isinstance(part, Missing))
