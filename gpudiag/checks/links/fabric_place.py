"""Where a machine's NVLink fabric is managed, and so what to do where a GPU is not registered with it."""

from gpudiag.checks.subjects import is_virtual
from gpudiag.model.device import Device, FabricState, Snapshot
from gpudiag.model.reading import Missing
from gpudiag.reference.nvml import return_texts

# Compute trays of racks: their switches are in trays of their own (NVIDIA, GB200 NVL Multi-Node Tuning
# Guide).
_RACKS = ("GB200", "GB300")
# NVLink 5 without a rack: the fabric manager works with a subnet manager (nvlsm), which needs InfiniBand's
# user interface (NVIDIA, Fabric Manager user guide, "Fourth generation NVSwitch"; gpu-operator issue 2781).
_NVLINK5 = ("B200", "B300")
_NVLINK5_MODULES = ("mlx5_ib", "ib_umad")

_ON_HOST = (
    "[driver] Look at `systemctl status nvidia-fabricmanager` and its log;"
    " its version must match the driver's."
)
_ON_TRAYS = (
    "[driver] The fabric manager runs on the rack's NVLink switch trays, not here:"
    " ask the rack's controller (NMX)"
    " whether this tray is in a partition. For jobs on several trays look at the IMEX domain too:"
    " `nvidia-imex-ctl -N`. Then [reset: reset the GPUs]."
)
_OUTSIDE = (
    "[driver] The fabric manager runs outside, on the host of this {}: its"
    " administrator or the provider must look at it."
)


def is_of_rack(device: Device) -> bool:
    """Whether the GPU is one of a rack (NVL72), whose NVLink switches are in trays of their own."""
    return not isinstance(device.name, Missing) and any(word in device.name for word in _RACKS)


def missing_modules(snapshot: Snapshot) -> tuple[str, ...]:
    """The kernel modules that this machine needs for the switches of NVLink 5, and has not loaded."""
    modules = snapshot.machine.kernel_modules
    if isinstance(modules, Missing) or _outside(snapshot) or not any(map(_has_nvlink5, snapshot.devices)):
        return ()
    return tuple(name for name in _NVLINK5_MODULES if name not in modules)


def advise_on_fabric(snapshot: Snapshot) -> str:
    """What to do where GPUs are not registered with the fabric, by where it is managed."""
    outside = _outside(snapshot)
    if outside:
        return _OUTSIDE.format(outside)
    if any(map(is_of_rack, snapshot.devices)):
        return _ON_TRAYS
    missing = missing_modules(snapshot)
    if missing:
        return (
            f"Load what the switches of NVLink 5 are managed through: `sudo modprobe -a {' '.join(missing)}`"
            " (package linux-modules-extra where they are not found), then `sudo systemctl restart"
            f" nvidia-fabricmanager`. {_ON_HOST}"
        )
    return _ON_HOST


def describe_status(fabric: FabricState) -> str:
    """The state and, if it is no success, NVML's status: `completed, insufficient resources`."""
    words = fabric.state.replace("_", " ")
    if fabric.status == "success":
        return words
    number = fabric.status.rpartition("_")[2]
    text = return_texts().get(int(number)) if number.isdecimal() else None
    return f"{words}, {text.lower() if text else fabric.status.replace('_', ' ')}"


def _has_nvlink5(device: Device) -> bool:
    name = device.name
    return not isinstance(name, Missing) and any(word in name.split() for word in _NVLINK5)


def _outside(snapshot: Snapshot) -> str:
    """`container` or `virtual machine` where another system has the fabric manager; empty on bare metal."""
    if snapshot.machine.container is not None:
        return "container"
    state = snapshot.machine.state
    return "" if isinstance(state, Missing) or not is_virtual(state) else "virtual machine"
