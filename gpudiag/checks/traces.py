"""Traces of a GPU: whatever shows that this machine has one, or was given one, working or not.

A machine with a trace and no working GPU is broken; a machine without a trace simply has none.
"""

from dataclasses import dataclass

from gpudiag.checks.gpu.availability import granted_count
from gpudiag.model.context import Context
from gpudiag.model.device import Snapshot, SourceState
from gpudiag.model.host import NVIDIA_VENDOR_ID, PciDevice, own_gpus, passed_through
from gpudiag.model.number_ranges import count_of
from gpudiag.model.reading import NOT_ASKED, Missing, Reading

BRIDGE_CLASS_ID = "0680"  # other bridge: what an NVSwitch is
_NO_LIBRARY = (SourceState.NOT_ASKED, SourceState.LIBRARY_ABSENT)


@dataclass(frozen=True, slots=True)
class Trace:
    """One trace: where it was seen, and what was seen there."""

    place: str  # pci, device_node, driver, nvml, allocation, expected, history
    text: str


def pci_gpus(snapshot: Snapshot) -> tuple[PciDevice, ...]:
    """The GPUs on the PCI bus for this machine's own use; none where the bus is not readable."""
    devices = snapshot.machine.pci_devices
    return () if isinstance(devices, Missing) else own_gpus(devices)


def gpus_of_guests(snapshot: Snapshot) -> tuple[PciDevice, ...]:
    """The GPUs on the PCI bus that virtual machines of this host have (vfio-pci)."""
    devices = snapshot.machine.pci_devices
    return () if isinstance(devices, Missing) else passed_through(devices)


def nvswitches(snapshot: Snapshot) -> tuple[PciDevice, ...]:
    """The NVSwitches on the PCI bus; none where the bus is not readable."""
    devices = snapshot.machine.pci_devices
    found = () if isinstance(devices, Missing) else devices
    return tuple(
        device
        for device in found
        if device.vendor_id == NVIDIA_VENDOR_ID and device.class_id[:4] == BRIDGE_CLASS_ID
    )


def traces_for(context: Context) -> tuple[Trace, ...]:
    """Every trace of a GPU that a check may use: who expects GPUs or a driver expects a GPU."""
    expected = context.at_least_gpus if isinstance(context.expected_gpus, Missing) else context.expected_gpus
    return gpu_traces(context.snapshot, expected, context.expected_driver)


def gpu_traces(
    snapshot: Snapshot, expected_gpus: Reading[int] = NOT_ASKED, expected_driver: Reading[str] = NOT_ASKED
) -> tuple[Trace, ...]:
    """Every trace of a GPU on this machine, strongest first; empty: there is no GPU here."""
    found = (
        _on_the_bus(snapshot),
        _in_nvml(snapshot, expected_gpus),
        _device_nodes(snapshot),
        _driver(snapshot),
        _allocation(snapshot),
        _expected(expected_gpus),
        _expected_driver(expected_driver),
    )
    return tuple(trace for trace in found if trace is not None)


def _on_the_bus(snapshot: Snapshot) -> Trace | None:
    gpus = pci_gpus(snapshot)
    if not gpus:
        return None
    return Trace("pci", f"{count_of(len(gpus), 'NVIDIA GPU')} on the PCI bus")


def _in_nvml(snapshot: Snapshot, expected_gpus: Reading[int]) -> Trace | None:
    """The trace that the driver's library is: whoever installed it expects a GPU here, working or not.

    All machines of one image may have it: no trace where the user expects no GPU and no driver is loaded.
    """
    state = snapshot.source("nvml").state
    if state in _NO_LIBRARY or (state is SourceState.DRIVER_NOT_LOADED and expected_gpus == 0):
        return None
    if state is SourceState.OK:
        return Trace("nvml", f"NVML lists {len(snapshot.devices)}")
    works = "works and lists no GPU" if state is SourceState.NO_DEVICES else "is installed"
    return Trace("nvml", f"the NVIDIA driver's library {works}")


def _device_nodes(snapshot: Snapshot) -> Trace | None:
    nodes = snapshot.machine.device_nodes
    if isinstance(nodes, Missing) or not nodes:
        return None
    more = f" and {len(nodes) - 1} more" if len(nodes) > 1 else ""
    return Trace("device_node", f"device node {nodes[0]}{more}")


def _driver(snapshot: Snapshot) -> Trace | None:
    version = snapshot.machine.kernel_driver_version
    return None if isinstance(version, Missing) else Trace("driver", f"kernel driver {version} is loaded")


def _allocation(snapshot: Snapshot) -> Trace | None:
    for variable, value in snapshot.machine.allocation.items():
        if granted_count(variable, value):
            return Trace("allocation", f"{variable}={value}")
    return None


def _expected(expected_gpus: Reading[int]) -> Trace | None:
    if isinstance(expected_gpus, Missing) or expected_gpus == 0:
        return None
    return Trace("expected", f"{expected_gpus} expected")


def _expected_driver(expected_driver: Reading[str]) -> Trace | None:
    if isinstance(expected_driver, Missing):
        return None
    return Trace("expected", f"driver {expected_driver} expected")
