"""The sources side by side: each GPU's identity in them, and where they differ, with the likely reason.

NVML's rows are joined with the PCI bus by bus id; a GPU that NVML cannot name, or not list, is a row too.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from gpudiag.model.codec import all_missing, noun
from gpudiag.model.device import (
    Device,
    DeviceId,
    DeviceView,
    Disagreement,
    SourceState,
    SourceStatus,
    TorchFacts,
)
from gpudiag.model.host import Machine, PciDevice, own_gpus
from gpudiag.model.reading import Missing, MissingReason, Reading, Scalar
from gpudiag.probe.nvml.answer import reason_of_state
from gpudiag.probe.visibility import cuda_visible, explain_given

# --- who is who

_SLOT_FIELDS = {
    "numa_node": "numa_node",
    "pcie_generation_slot_max": "slot_generation_max",
    "pcie_width_slot_max": "slot_width_max",
}


def pci_gpus(machine: Machine) -> tuple[PciDevice, ...]:
    """The GPUs on the PCI bus that this machine could use, by bus id; none where the bus is not shown."""
    if isinstance(machine.pci_devices, Missing):
        return ()
    return own_gpus(machine.pci_devices)


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
    uuids = list(uuid_of_bus_id.values())
    uuid_of_bus_id = {bus_id: uuid for bus_id, uuid in uuid_of_bus_id.items() if uuids.count(uuid) == 1}
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
    """NVML index to bus id, as NVML numbers by bus id; empty unless the counts and all known pairs fit."""
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


# --- where they differ

_SOURCES = ("nvml", "gputil", "torch")

# Sources define a GPU's total memory differently, by what firmware and driver keep for themselves; a
# difference beyond this share of it has another cause.
MEMORY_TOLERANCE = 0.02


def find_count_disagreement(
    machine: Machine,
    statuses: Mapping[str, SourceStatus],
    devices: tuple[Device, ...],
    torch: Reading[TorchFacts],
) -> Iterator[Disagreement]:
    """One disagreement with every source's count, unless all match NVML's; `devices` are NVML's rows."""
    counts = _counts(statuses)
    on_bus = len(pci_gpus(machine))
    if on_bus:
        counts["pci"] = on_bus
    listed = counts.get("nvml")
    if listed is None or len(set(counts.values())) < 2:
        return
    explained = []
    if counts.get("pci", listed) != listed:
        explained.append(_explain_pci(machine, devices, listed, on_bus))
    if counts.get("gputil", listed) != listed:
        explained.append(_explain_gputil(devices, statuses["gputil"]))
    if counts.get("torch", listed) != listed and not isinstance(torch, Missing):
        explained.append(_explain_torch(machine, devices, torch, counts["torch"]))
    values: dict[str, Scalar | None] = dict(counts)
    reason = "; ".join(words for words, _ in explained)
    yield Disagreement("count", values, reason, expected=all(expected for _, expected in explained))


def _counts(statuses: Mapping[str, SourceStatus]) -> dict[str, int]:
    """The GPU count of each source that gives one."""
    counts = {}
    for source in _SOURCES:
        status = statuses.get(source)
        if status is not None and not isinstance(status.device_count, Missing):
            counts[source] = status.device_count
    return counts


def _explain_pci(machine: Machine, devices: tuple[Device, ...], listed: int, on_bus: int) -> tuple[str, bool]:
    if listed > on_bus:
        return f"the PCI bus shows {on_bus} of the GPUs that NVML lists", False
    given = explain_given(machine, listed)
    if given is not None:
        return given, True
    known = {device.id.bus_id for device in devices}
    missing = [gpu for gpu in pci_gpus(machine) if gpu.bus_id not in known]
    unbound = [gpu.bus_id for gpu in missing if gpu.driver != "nvidia"]
    if unbound and len(unbound) == len(missing):
        return f"the NVIDIA driver is not bound to {', '.join(unbound)}", False
    if len(missing) == on_bus:
        return "NVML lists no GPU on the bus: the driver started none of them (`dmesg | grep NVRM`)", False
    where = ", ".join(gpu.bus_id for gpu in missing)
    words = f"NVML does not list {where}: off the bus, or given up by the driver (`dmesg | grep NVRM`)"
    return words, False


def _explain_gputil(devices: tuple[Device, ...], status: SourceStatus) -> tuple[str, bool]:
    silent = name_silent(devices)
    if silent:
        return f"nvidia-smi, which GPUtil runs, leaves out {silent}, which NVML cannot read either", False
    return f"GPUtil: {status.reason or 'nvidia-smi lists other GPUs than NVML'}", False


def _explain_torch(
    machine: Machine, devices: tuple[Device, ...], torch: TorchFacts, count: int
) -> tuple[str, bool]:
    """The likely reason for torch's count, the most certain one first."""
    if isinstance(torch.cuda_runtime_version, Missing):
        return f"torch {torch.version} is a CPU build and uses no GPU", True
    uuids = [None if isinstance(device.id.uuid, Missing) else device.id.uuid for device in devices]
    visible = cuda_visible(machine, uuids)
    value = machine.allocation.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and len(visible) == count:
        return f"CUDA_VISIBLE_DEVICES={value} shows torch {count} of {len(devices)}", True
    if any(device.mig_mode == "enabled" for device in devices):
        return "with MIG on, a process uses one MIG instance, and not the GPUs that are split", True
    silent = name_silent(devices)
    if silent:
        return f"CUDA does not use {silent}, which NVML cannot read either", False
    if isinstance(torch.context_starts, Missing) and torch.context_starts.reason is MissingReason.ERROR:
        return f"CUDA does not start: {torch.context_starts.detail}", False
    if value is not None:
        return f"CUDA_VISIBLE_DEVICES={value} names {len(visible or ())} of {len(devices)} GPUs here", False
    return "no setting explains torch's count: look at the job's device cgroup and at /dev/nvidia*", False


def name_silent(devices: tuple[Device, ...]) -> str:
    """The GPUs that are lost or hung, by index; empty where all respond."""
    silent = [device.id.nvml_index for device in devices if isinstance(device.responding, Missing)]
    names = [f"GPU {index}" for index in silent if not isinstance(index, Missing)]
    return ", ".join(names)


@noun
class Gathered:
    """The answers of all sources: `devices` is NVML's list, `views` the other sources'."""

    machine: Machine
    statuses: Mapping[str, SourceStatus]
    driver_version: Reading[str]  # NVML's
    devices: tuple[Device, ...]
    views: tuple[DeviceView, ...]
    torch: Reading[TorchFacts]

    def views_of(self, source: str) -> tuple[DeviceView, ...]:
        """One source's views, in its own order."""
        return tuple(view for view in self.views if view.source == source)


def find_disagreements(gathered: Gathered) -> tuple[Disagreement, ...]:
    """Every fact on which the sources differ: the machine's first, then GPU by GPU."""
    found = (
        *find_count_disagreement(gathered.machine, gathered.statuses, gathered.devices, gathered.torch),
        *_contexts(gathered),
        *_order_in_torch(gathered),
        *_order_in_gputil(gathered),
        *_driver_version(gathered),
        *_by_device(gathered),
    )
    return found


def _contexts(gathered: Gathered) -> Iterator[Disagreement]:
    """Torch counts GPUs on which no CUDA context starts."""
    facts = gathered.torch
    if isinstance(facts, Missing) or isinstance(facts.cuda_runtime_version, Missing):
        return
    starts, counted = facts.context_starts, facts.device_count
    if not isinstance(starts, Missing) or isinstance(counted, Missing) or counted == 0:
        return
    contexts = [view.context_starts for view in gathered.views_of("torch")]
    started = sum(context is True for context in contexts)
    values: dict[str, Scalar | None] = {"torch": counted, "contexts": started}
    status = gathered.statuses.get("nvml")
    if status is not None and status.state is SourceState.OK:
        values = {"nvml": len(gathered.devices), **values}
    silent = name_silent(gathered.devices)
    cause = f"; NVML cannot read {silent} either" if silent else ""
    # The detail of the first GPU that failed: torch's overall detail would repeat how many failed.
    why = next((context.detail for context in contexts if isinstance(context, Missing)), starts.detail)
    reason = f"CUDA starts a context on {started} of {counted}: {why}{cause}"
    yield Disagreement("context_starts", values, reason, expected=False)


def _order_in_torch(gathered: Gathered) -> Iterator[Disagreement]:
    """CUDA numbers the GPUs in another order than NVML."""
    index_of = _index_of_uuid(gathered)
    uuids = [view.uuid for view in gathered.views_of("torch")]
    order = [index_of[uuid] for uuid in uuids if not isinstance(uuid, Missing) and uuid in index_of]
    if order == sorted(order):
        return
    by_index = {index: uuid for uuid, index in index_of.items()}
    wanted = cuda_visible(gathered.machine, [by_index.get(index) for index in range(len(by_index))])
    device_order = gathered.machine.allocation.get("CUDA_DEVICE_ORDER")
    if wanted == order:
        reason, expected = "CUDA_VISIBLE_DEVICES lists them in this order", True
    elif device_order != "PCI_BUS_ID":
        reason = "CUDA puts the fastest GPU first; with CUDA_DEVICE_ORDER=PCI_BUS_ID it counts as NVML does"
        expected = True
    else:
        reason, expected = "CUDA_DEVICE_ORDER=PCI_BUS_ID is set, and the orders differ all the same", False
    yield Disagreement("order", {"nvml": _list(sorted(order)), "torch": _list(order)}, reason, expected)


def _order_in_gputil(gathered: Gathered) -> Iterator[Disagreement]:
    index_of = _index_of_uuid(gathered)
    pairs = [
        (index_of[view.uuid], view.source_index)
        for view in gathered.views_of("gputil")
        if not isinstance(view.uuid, Missing) and view.uuid in index_of
    ]
    if any(ours != theirs for ours, theirs in pairs):
        values: dict[str, Scalar | None] = {
            "nvml": _list([ours for ours, _ in pairs]),
            "gputil": _list([theirs for _, theirs in pairs]),
        }
        reason = "nvidia-smi numbers the GPUs in a different order from the NVML that gpudiag asks"
        yield Disagreement("order", values, reason, expected=False)


def _driver_version(gathered: Gathered) -> Iterator[Disagreement]:
    """The kernel's driver, NVML and nvidia-smi name different versions."""
    seen: dict[str, Reading[str]] = {
        "kernel": gathered.machine.kernel_driver_version,
        "nvml": gathered.driver_version,
    }
    for view in gathered.views_of("gputil")[:1]:
        seen["gputil"] = view.driver_version
    values: dict[str, Scalar | None] = {
        source: version for source, version in seen.items() if not isinstance(version, Missing)
    }
    if len(set(values.values())) < 2:
        return
    if values.get("kernel", values.get("nvml")) != values.get("nvml"):
        reason = (
            "the driver's libraries and its kernel module are of different versions: reboot, or reload it"
        )
    else:
        reason = "nvidia-smi on PATH uses another driver's libraries than gpudiag does"
    yield Disagreement("driver_version", values, reason, expected=False)


def _by_device(gathered: Gathered) -> Iterator[Disagreement]:
    """The sources' values for one GPU: its name, its memory."""
    views = {view.uuid: view for view in gathered.views_of("gputil") if not isinstance(view.uuid, Missing)}
    torch_views = {
        view.uuid: view for view in gathered.views_of("torch") if not isinstance(view.uuid, Missing)
    }
    for device in gathered.devices:
        uuid = device.id.uuid
        if isinstance(uuid, Missing):
            continue
        same = {"gputil": views.get(uuid), "torch": torch_views.get(uuid)}
        shown = {source: view for source, view in same.items() if view is not None}
        yield from _name(device, uuid, shown)
        yield from _memory(device, uuid, shown)


def _name(device: Device, uuid: str, shown: Mapping[str, DeviceView]) -> Iterator[Disagreement]:
    names: dict[str, Scalar | None] = {
        source: view.name for source, view in shown.items() if not isinstance(view.name, Missing)
    }
    if isinstance(device.name, Missing) or all(name == device.name for name in names.values()):
        return
    reason = "the sources give this GPU different names: they may come from different drivers"
    yield Disagreement("name", {"nvml": device.name, **names}, reason, expected=False, uuid=uuid)


def _memory(device: Device, uuid: str, shown: Mapping[str, DeviceView]) -> Iterator[Disagreement]:
    total = device.memory_total_bytes
    if isinstance(total, Missing):
        return
    reserved = device.memory_reserved_bytes
    # CUDA does not count what the driver reserves, nvidia-smi does.
    least = {"gputil": total, "torch": total - (0 if isinstance(reserved, Missing) else reserved)}
    values: dict[str, Scalar | None] = {"nvml": total}
    differ = False
    for source, view in shown.items():
        theirs = view.memory_total_bytes
        if isinstance(theirs, Missing):
            continue
        values[source] = theirs
        differ |= not least[source] - total * MEMORY_TOLERANCE <= theirs <= total * (1 + MEMORY_TOLERANCE)
    if differ:
        reason = (
            f"more than {MEMORY_TOLERANCE:.0%} apart, beyond what driver and firmware keep for themselves"
        )
        yield Disagreement("memory_total_bytes", values, reason, expected=False, uuid=uuid)


def _index_of_uuid(gathered: Gathered) -> dict[str, int]:
    return {
        device.id.uuid: device.id.nvml_index
        for device in gathered.devices
        if not isinstance(device.id.uuid, Missing) and not isinstance(device.id.nvml_index, Missing)
    }


def _list(numbers: list[int]) -> str:
    return ",".join(map(str, numbers))
