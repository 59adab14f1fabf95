"""Every fault that a simulated machine can have, in one table, and how a spec names them.

They are applied in the table's order, however written, and last the recovery that the driver asks for. Each
changes readings, calls, host tree, kernel log and torch's answer together.
"""

import re
from collections.abc import Iterable

from gpudiag.errors import UsageError
from gpudiag.model.nearest import nearest_hint
from gpudiag.simulate.blueprint import Blueprint
from gpudiag.simulate.faults import gpu as fault_gpu
from gpudiag.simulate.faults import machine as fault_machine
from gpudiag.simulate.faults.fault import Fault, FaultKind
from gpudiag.simulate.faults.gpu import ask_for_recovery

_DRIVER, _TORCH, _LOAD = "driver", "torch", "load"
_WHOLE_NUMBER = ("N", "LINK", "CODE")
_SECONDS = re.compile(r"\d+(\.\d+)?")

FAULTS = (
    # what a GPU is doing
    FaultKind("busy", "N", "a training process: 98 % busy, most of the memory", fault_machine.train, _LOAD),
    FaultKind(
        "idle-holder",
        "N",
        "a notebook holds half of the memory, does nothing",
        fault_machine.hold,
        _LOAD,
    ),
    FaultKind("zombie", "N", "a dead process that still holds GPU memory", fault_machine.leave_zombie),
    FaultKind("job-hangs", "", "the job on GPUs 0 to 3 stands still, by rank 2", fault_machine.hang_job),
    # a GPU's own readings
    FaultKind("hot", "N", "past its thermal limit, slowed down", fault_gpu.heat),
    FaultKind("throttle", "N", "the power brake holds the clock down", fault_gpu.throttle),
    FaultKind("power-cap", "N", "power limit lowered to 60 % of the default", fault_gpu.cap_power),
    FaultKind("ecc", "N", "an uncorrectable ECC error, Xid 48 and 63", fault_gpu.break_memory),
    FaultKind("ecc-corrected", "N", "thousands of corrected ECC errors", fault_gpu.correct_memory),
    FaultKind("row-remap-pending", "N", "a memory row waits for a reset to be replaced", fault_gpu.remap_row),
    FaultKind("row-remap-failed", "N", "a memory row could not be replaced, Xid 64", fault_gpu.fail_remap),
    FaultKind(
        "retired-pages", "N", "retired memory pages, one pending (before Ampere)", fault_gpu.retire_pages
    ),
    FaultKind("ecc-off", "N", "ECC switched off", fault_gpu.switch_ecc_off),
    FaultKind("mig-pending", "N", "MIG mode switched, waiting for a reset", fault_gpu.pend_mig),
    FaultKind("compute-prohibited", "N", "compute mode allows no program", fault_gpu.prohibit_compute),
    FaultKind("recovery", "N:ACTION", "NVML asks for an action such as gpu_reset", fault_gpu.want_recovery),
    # what a GPU is connected with
    FaultKind("pcie-width", "N", "half of the PCIe lanes", fault_gpu.narrow_pcie),
    FaultKind("pcie-gen", "N", "PCIe link two generations too slow", fault_gpu.slow_pcie),
    FaultKind(
        "nvlink-down",
        "N[:LINK]",
        "one NVLink or all are down",
        fault_gpu.break_nvlink,
        repeatable=True,
    ),
    FaultKind("nvlink-errors", "N", "the first NVLink counts errors", fault_gpu.spoil_nvlink),
    # whether it answers at all
    FaultKind("slow", "N:SECONDS", "every NVML call on it takes that long", fault_gpu.slow_down),
    FaultKind(
        "hang-call",
        "N:FUNCTION",
        "that NVML call on it never returns",
        fault_gpu.hang_call,
        repeatable=True,
    ),
    FaultKind("xid", "N:CODE", "the driver reports that Xid", fault_gpu.log_xid, repeatable=True),
    FaultKind("hang", "N", "no NVML call on it returns", fault_gpu.hang, silences=True),
    FaultKind("lost", "N", "fell off the bus: NVML answers 15, Xid 79", fault_gpu.lose, silences=True),
    # the last of those about one GPU, as it renumbers the later GPUs
    FaultKind("gone", "N", "neither on the PCI bus nor in NVML", fault_gpu.remove, silences=True),
    # the whole machine
    FaultKind(
        "old-driver", "", "the oldest driver for these GPUs", fault_machine.install_old_driver, _DRIVER
    ),
    FaultKind("no-driver", "", "kernel driver not loaded", fault_machine.unload_driver, _DRIVER),
    FaultKind("nouveau", "", "nouveau loaded instead of the driver", fault_machine.load_nouveau, _DRIVER),
    FaultKind(
        "no-library", "", "libnvidia-ml and nvidia-smi not installed", fault_machine.remove_library, _DRIVER
    ),
    FaultKind(
        "version-mismatch", "", "library newer than kernel driver", fault_machine.mismatch_versions, _DRIVER
    ),
    FaultKind(
        "no-permission", "", "no permission to open the device nodes", fault_machine.deny_permission, _DRIVER
    ),
    FaultKind(
        "zero-gpus",
        "",
        "the driver starts no GPU, though the bus shows them",
        fault_machine.start_no_gpu,
        _DRIVER,
    ),
    FaultKind("init-hang", "", "nvmlInit never returns", fault_machine.hang_init, _DRIVER),
    FaultKind(
        "cold", "SECONDS", "the driver takes that long to attach each GPU", fault_machine.cool_down, _DRIVER
    ),
    FaultKind("init-slow", "SECONDS", "nvmlInit takes that long", fault_machine.slow_init),
    FaultKind(
        "driver-costs", "", "calls into the driver cost what they did on an H100", fault_machine.charge_calls
    ),
    FaultKind("cuda-broken", "", "NVML fine, CUDA does not start", fault_machine.break_cuda, _TORCH),
    FaultKind("cpu-torch", "", "torch is its CPU build", fault_machine.install_cpu_torch, _TORCH),
    FaultKind("no-torch", "", "torch is not installed", fault_machine.remove_torch, _TORCH),
    FaultKind("visible", "LIST", "CUDA_VISIBLE_DEVICES is that list", fault_machine.set_visible),
    FaultKind("order", "", "CUDA numbers the GPUs differently from NVML", fault_machine.reorder_cuda),
)
_KINDS = {kind.name: kind for kind in FAULTS}
_ORDER = {kind.name: place for place, kind in enumerate(FAULTS)}


def parse_faults(texts: Iterable[str]) -> tuple[Fault, ...]:
    """The faults that those texts ask for, in the order in which they are applied.

    Raises:
        UsageError: an unknown fault, an argument that does not fit, or two that exclude each other.
    """
    faults = sorted(map(parse_fault, texts), key=lambda fault: (_ORDER[fault.kind.name], fault.text))
    _refuse_conflicts(faults)
    return tuple(faults)


def parse_fault(text: str) -> Fault:
    """One fault, such as `lost:3`, `slow:0:0.5` or `no-driver`. Raises UsageError: there is none such."""
    name, _, rest = text.partition(":")
    if name not in _KINDS:
        raise UsageError(f"there is no fault {name!r}", hint=nearest_hint(name, _KINDS))
    kind = _KINDS[name]
    wanted = re.findall(r"[A-Z]+", kind.arguments)
    given = rest.split(":", len(wanted) - 1) if wanted and rest else [rest] if rest else []
    required = len(re.findall(r"[A-Z]+", kind.arguments.split("[")[0]))
    if kind.arguments == "LIST" and text.endswith(":"):
        given = [""]  # an empty list means something: no GPU at all
    if not required <= len(given) <= len(wanted):
        raise UsageError(f"fault {text!r} is not complete", hint=f"write it as {kind.usage}")
    arguments = [_checked(what, value, text, kind) for what, value in zip(wanted, given, strict=False)]
    gpu = int(arguments.pop(0)) if kind.of_gpu else None
    return Fault(kind, text, gpu, arguments[0] if arguments else None)


def apply_faults(blueprint: Blueprint, faults: Iterable[Fault]) -> Blueprint:
    """The machine with the faults; their GPU numbers are NVML's on the machine without faults.

    Raises:
        UsageError: a fault names a GPU that is not there, or cannot happen on that machine.
    """
    for fault in sorted(faults, key=lambda fault: (_ORDER[fault.kind.name], -(fault.gpu or 0))):
        count = len(blueprint.listed())
        if fault.gpu is not None and fault.gpu >= count:
            raise fault.refuse(_which_gpus(count))
        blueprint = fault.kind.apply(blueprint, fault)
    return ask_for_recovery(blueprint)


def _which_gpus(count: int) -> str:
    if count == 0:
        return "this machine has no GPU"
    return "this machine has GPU 0 only" if count == 1 else f"this machine has GPUs 0 to {count - 1}"


def _checked(what: str, value: str, text: str, kind: FaultKind) -> str:
    good = (
        value.isdecimal()
        if what in _WHOLE_NUMBER
        else bool(_SECONDS.fullmatch(value))
        if what == "SECONDS"
        else True
    )
    if not good or (what == "CODE" and int(value) == 0):
        raise UsageError(f"fault {text!r}: {value!r} is not a valid {what}", hint=f"write it as {kind.usage}")
    return value


def _refuse_conflicts(faults: list[Fault]) -> None:
    for at, first in enumerate(faults):
        for second in faults[at + 1 :]:
            why = _conflict(first, second)
            if why:
                raise UsageError(f"faults {first.text!r} and {second.text!r} exclude each other: {why}")


def _conflict(first: Fault, second: Fault) -> str | None:
    """Why two faults exclude each other, or None."""
    if first.text == second.text:
        return "it is the same fault twice"
    if first.gpu != second.gpu:
        return None
    if first.kind is second.kind and not first.kind.repeatable:
        return "a machine can have it only once"
    if first.kind.group is not None and first.kind.group == second.kind.group:
        return f"both change the {first.kind.group}"
    silent = next((fault for fault in (first, second) if fault.kind.silences), None)
    if silent is not None and "xid" not in (first.kind.name, second.kind.name):
        return f"a GPU that is {silent.kind.name} reports nothing else"
    return None
