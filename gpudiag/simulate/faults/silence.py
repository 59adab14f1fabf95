"""Faults after which a GPU no longer answers, or answers late: lost, gone, hung, slow."""

from dataclasses import replace
from difflib import get_close_matches
from fnmatch import filter as filter_names

from gpudiag.reference.nvml import exported_functions
from gpudiag.simulate.blueprint import Blueprint, GpuBlueprint, KernelLine
from gpudiag.simulate.faults.fault import Fault
from gpudiag.simulate.host.driver import xid_line
from gpudiag.simulate.scenario import CallFault

_GPU_IS_LOST = 15  # NVML_ERROR_GPU_IS_LOST
_FELL_OFF_SECONDS_AGO = 1260.0
_XID_OFF_THE_BUS = 79
# The GPU's identity was read before it was lost; NVML answers it from memory.
IDENTITY_CALLS = (
    "nvmlDeviceGetUUID", "nvmlDeviceGetPciInfo*", "nvmlDeviceGetIndex", "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetName", "nvmlDeviceGetSerial",
)  # fmt: skip
# Readings that are not NVML's: the kernel still shows them for a GPU that does not answer.
_KERNEL_READINGS = ("uuid", "bus_id", "numa_node", "pcie_generation_slot_max", "pcie_width_slot_max")
_IDENTITY_READINGS = (*_KERNEL_READINGS, "name", "serial")


def lose(blueprint: Blueprint, fault: Fault) -> Blueprint:
    """The GPU fell off the bus: NVML answers 15 to all but identity calls, Xid 79 is in the kernel log."""
    lost = blueprint.listed()[fault.on]
    address = lost.sysfs_address
    blueprint = blueprint.change_gpu(fault.on, _lost)
    return blueprint.log(
        xid_line(lost, _XID_OFF_THE_BUS, _FELL_OFF_SECONDS_AGO),
        KernelLine(_FELL_OFF_SECONDS_AGO, f"NVRM: GPU {address}: GPU has fallen off the bus.", 3),
        *(
            KernelLine(_FELL_OFF_SECONDS_AGO, f"NVRM: GPU {address}: GPU serial number is {serial}.", 3)
            for serial in [lost.gpu.readings.get("serial")]
            if serial is not None
        ),
    )


def remove(blueprint: Blueprint, fault: Fault) -> Blueprint:
    """The GPU is neither on the PCI bus nor in NVML: its slot lost the card."""
    gone = blueprint.listed()[fault.on]
    slot = gone.sysfs_address.rsplit(".", 1)[0]
    functions = tuple(at for at in blueprint.host.pci_functions if not at.address.startswith(slot))
    blueprint = replace(
        blueprint,
        gpus=tuple(gpu for gpu in blueprint.gpus if gpu is not gone),
        host=replace(blueprint.host, pci_functions=functions),
    )
    number = fault.on + 1
    return blueprint.log(
        KernelLine(
            _FELL_OFF_SECONDS_AGO, f"pcieport 0000:00:{number:02x}.0: pciehp: Slot({number}): Link Down"
        ),
        KernelLine(
            _FELL_OFF_SECONDS_AGO,
            f"pcieport 0000:00:{number:02x}.0: pciehp: Slot({number}): Card not present",
        ),
    )


def hang(blueprint: Blueprint, fault: Fault) -> Blueprint:
    """No call on the GPU returns, nor does CUDA start; the kernel's own files still name it."""
    blueprint = blueprint.change_gpu(fault.on, _hung)
    return replace(blueprint, torch=replace(blueprint.torch, hangs=True))


def hang_call(blueprint: Blueprint, fault: Fault) -> Blueprint:
    """One NVML function never returns for the GPU."""
    function = fault.argument or ""
    if not filter_names(exported_functions(), function):  # a name, or nvmlDeviceGetMemory*
        near = get_close_matches(function, exported_functions(), n=1)
        hint = f"did you mean {near[0]}?" if near else "such as hang-call:0:nvmlDeviceGetPowerUsage"
        raise fault.refuse(f"{function!r} is not an NVML function", hint)
    return blueprint.change_gpu(fault.on, lambda gpu: _with_fault(gpu, CallFault(function, hang=True)))


def slow_down(blueprint: Blueprint, fault: Fault) -> Blueprint:
    """Every call on the GPU answers late."""
    delay = CallFault("*", delay_seconds=float(fault.argument or 0))
    return blueprint.change_gpu(fault.on, lambda gpu: _with_fault(gpu, delay))


def _lost(gpu: GpuBlueprint) -> GpuBlueprint:
    lost = _silent(gpu, "device_lost", _IDENTITY_READINGS)
    lost = _with_fault(lost, CallFault("*", except_calls=IDENTITY_CALLS, code=_GPU_IS_LOST))
    lost = replace(lost, gpu=replace(lost.gpu, xid_codes=(*lost.gpu.xid_codes, _XID_OFF_THE_BUS)))
    return replace(lost, link_lost=True, cuda_lists_it=False)


def _hung(gpu: GpuBlueprint) -> GpuBlueprint:
    hung = _silent(gpu, "timed_out", _KERNEL_READINGS)
    return _with_fault(hung, CallFault("*", hang=True))


def _silent(gpu: GpuBlueprint, reason: str, known: tuple[str, ...]) -> GpuBlueprint:
    said = (*gpu.gpu.readings, *gpu.gpu.missing)
    silent = gpu.without_readings(reason, *(name for name in said if name not in known), "responding")
    return replace(silent, readings_of_kernel=gpu.gpu.readings)


def _with_fault(gpu: GpuBlueprint, fault: CallFault) -> GpuBlueprint:
    return replace(gpu, gpu=replace(gpu.gpu, faults=(fault, *gpu.gpu.faults)))
