"""NVML's rows and the other sources' views, joined."""

from dataclasses import replace

from gpudiag.model.device import Device, DeviceView
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason, Reading
from gpudiag.probe.torch_answer import CPU_BUILD, TorchAnswer


def with_ordinal(device: Device, torch: TorchAnswer, views: tuple[DeviceView, ...]) -> Device:
    """The device with its CUDA ordinal, or with the reason why it has none."""
    if torch.facts == NOT_ASKED:
        return device
    return replace(device, id=replace(device.id, cuda_ordinal=_ordinal(device, torch, views)))


def _ordinal(device: Device, torch: TorchAnswer, views: tuple[DeviceView, ...]) -> Reading[int]:
    facts = torch.facts
    if isinstance(facts, Missing):
        return facts
    for view in views:
        if view.source == torch.status.name and is_same_gpu(view, device):
            return view.source_index
        if view.source == torch.status.name and view.bus_id == device.id.bus_id:
            return Missing(MissingReason.NOT_SUPPORTED, "CUDA numbers its MIG instances instead")
    if isinstance(facts.cuda_runtime_version, Missing):
        return Missing(MissingReason.SOURCE_ABSENT, CPU_BUILD)
    if isinstance(facts.context_starts, Missing):
        return facts.context_starts
    return Missing(MissingReason.SOURCE_ABSENT, "torch does not list this GPU")


def is_same_gpu(view: DeviceView, device: Device) -> bool:
    """Whether a view is of that GPU as a whole: by UUID, else by bus id."""
    uuids = (view.uuid, device.id.uuid)
    if not any(isinstance(uuid, Missing) for uuid in uuids):
        return uuids[0] == uuids[1]
    return not isinstance(view.bus_id, Missing) and view.bus_id == device.id.bus_id


def views_of_mig(views: tuple[DeviceView, ...], devices: tuple[Device, ...]) -> tuple[DeviceView, ...]:
    """Torch's views with the UUIDs of MIG instances as NVML writes them: CUDA gives them without a prefix."""
    instances = {
        str(instance.uuid).removeprefix("MIG-"): instance.uuid
        for device in devices
        if not isinstance(device.mig_instances, Missing)
        for instance in device.mig_instances
    }
    return tuple(
        view
        if isinstance(view.uuid, Missing)
        else replace(view, uuid=instances.get(view.uuid.removeprefix("GPU-"), view.uuid))
        for view in views
    )
