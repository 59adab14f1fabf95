"""Where the sources count different numbers of GPUs, and why."""

from collections.abc import Iterator, Mapping

from gpudiag.model.device import Device, Disagreement, SourceStatus, TorchFacts
from gpudiag.model.host import Machine
from gpudiag.model.reading import Missing, MissingReason, Reading, Scalar
from gpudiag.probe.identity import pci_gpus
from gpudiag.probe.visibility import cuda_visible, explain_given

_SOURCES = ("nvml", "gputil", "torch")


def find_count_disagreement(
    machine: Machine,
    statuses: Mapping[str, SourceStatus],
    devices: tuple[Device, ...],
    torch: Reading[TorchFacts],
) -> Iterator[Disagreement]:
    """One disagreement with every source's count, where they are not all NVML's; `devices` are NVML's rows."""
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
    """How many GPUs each source counts, of those that count."""
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
        return "with MIG on, a process uses one MIG instance, and no GPU that is split", True
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
