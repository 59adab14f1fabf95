"""Each GPU's identity, from NVML, the PCI bus and the kernel driver's files.

NVML's rows are joined with the PCI bus by bus id. A GPU that NVML can no longer name gets its identity
from the other sources, and one that NVML does not list at all still gets a row.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpudiag.model.codec import all_missing
from gpudiag.model.device import Device, DeviceId, SourceState
from gpudiag.model.host import DISPLAY_CLASSES, Machine, PciDevice
from gpudiag.model.reading import Missing, MissingReason, Reading
from gpudiag.probe.nvml.answer import reason_of_state

_PASSED_THROUGH = "vfio-pci"  # the driver that hands a device over to a virtual machine
_SLOT_FIELDS = {
    "numa_node": "numa_node",
    "pcie_generation_slot_max": "slot_generation_max",
    "pcie_width_slot_max": "slot_width_max",
}


def pci_gpus(machine: Machine) -> tuple[PciDevice, ...]:
    """The GPUs on the PCI bus that this machine could use, by bus id; none where the bus is not shown."""
    if isinstance(machine.pci_devices, Missing):
        return ()
    return tuple(
        device
        for device in machine.pci_devices
        if device.class_id in DISPLAY_CLASSES and device.driver != _PASSED_THROUGH
    )


def lacks_identity(devices: tuple[Device, ...], machine: Machine) -> bool:
    """Whether a GPU lacks its UUID or bus id, or is only on the bus: then read the driver's files."""
    known = {device.id.bus_id for device in devices}
    unnamed = any(
        isinstance(part, Missing) for device in devices for part in (device.id.uuid, device.id.bus_id)
    )
    return unnamed or any(gpu.bus_id not in known for gpu in pci_gpus(machine))


def complete_identities(
    devices: tuple[Device, ...], machine: Machine, uuid_of_bus_id: Mapping[str, str | None]
) -> tuple[Device, ...]:
    """The devices with the UUIDs, bus ids, NUMA nodes and slot limits that NVML did not give."""
    by_order = _bus_ids_by_order(devices, pci_gpus(machine))
    bus_id_of_uuid = {uuid: bus_id for bus_id, uuid in uuid_of_bus_id.items() if uuid}
    completed = []
    for device in devices:
        identity = device.id
        if isinstance(identity.bus_id, Missing):
            found = bus_id_of_uuid.get(_known(identity.uuid)) or by_order.get(_known(identity.nvml_index))
            identity = replace(identity, bus_id=found or identity.bus_id)
        if isinstance(identity.uuid, Missing):
            identity = replace(identity, uuid=uuid_of_bus_id.get(_known(identity.bus_id)) or identity.uuid)
        completed.append(replace(device, id=identity, **_slot_readings(identity.bus_id, machine)))
    return tuple(completed)


def _known(reading: Reading[Any]) -> Any:
    return None if isinstance(reading, Missing) else reading


def _bus_ids_by_order(devices: tuple[Device, ...], gpus: tuple[PciDevice, ...]) -> dict[int, str]:
    """NVML index to bus id; empty unless NVML lists as many GPUs as the bus and every known pair fits.

    NVML numbers GPUs by bus id, so the known pairs fix the unknown ones.
    """
    on_bus = [gpu.bus_id for gpu in gpus]
    if len(on_bus) != len(devices):
        return {}
    pairs = [(device.id.nvml_index, device.id.bus_id) for device in devices]
    places = {index: on_bus[index] for index, _ in pairs if not isinstance(index, Missing)}
    fits = all(isinstance(bus_id, Missing) or places.get(_known(index)) == bus_id for index, bus_id in pairs)
    return places if fits else {}


def _slot_readings(bus_id: Reading[str], machine: Machine) -> dict[str, Any]:
    """One GPU's NUMA node and slot limits from the PCI bus, under the names of Device's fields."""
    if isinstance(machine.pci_devices, Missing):
        why = machine.pci_devices
    else:
        for gpu in machine.pci_devices:
            if gpu.bus_id == bus_id:
                return {field: getattr(gpu, source) for field, source in _SLOT_FIELDS.items()}
        why = Missing(MissingReason.SOURCE_ABSENT, "the GPU is not on the PCI bus that this machine shows")
    return dict.fromkeys(_SLOT_FIELDS, why)


def rows_of_pci(
    devices: tuple[Device, ...],
    machine: Machine,
    state: SourceState,
    words: str,
    uuid_of_bus_id: Mapping[str, str | None],
) -> tuple[Device, ...]:
    """A row for each GPU that only the PCI bus shows; `state` and `words` are NVML's."""
    known = {device.id.bus_id for device in devices}
    if any(isinstance(bus_id, Missing) for bus_id in known):
        return ()  # it may be the one that NVML lists without a bus id
    if state in (SourceState.OK, SourceState.NO_DEVICES):
        words = "it is on the PCI bus, and NVML does not list it"
        reason = MissingReason.DEVICE_LOST
    else:
        reason = reason_of_state(state)
    why, rest = Missing(reason, words), Missing(reason)
    rows = []
    for gpu in pci_gpus(machine):
        if gpu.bus_id not in known:
            identity = DeviceId(uuid_of_bus_id.get(gpu.bus_id) or rest, gpu.bus_id, rest)
            readings = _slot_readings(gpu.bus_id, machine)
            rows.append(all_missing(Device, rest, id=identity, responding=why, **readings))
    return tuple(rows)
