"""What findings are about, and how a message names it."""

from gpudiag.model.device import Device, Snapshot
from gpudiag.model.evidence import DeviceSubject
from gpudiag.model.host import PciDevice
from gpudiag.model.reading import Missing


def device_subject(snapshot: Snapshot, device: Device) -> DeviceSubject:
    """The subject for one GPU of this snapshot."""
    return DeviceSubject(device.id.uuid, device.id.bus_id, device.id.nvml_index, snapshot.host)


def name_device(device: Device) -> str:
    """A GPU as a message names it, by what is known: `GPU 5 (5d:00.0)`, `the GPU at 5d:00.0`."""
    index, bus_id = device.id.nvml_index, device.id.bus_id
    if isinstance(index, Missing):
        return "a GPU" if isinstance(bus_id, Missing) else f"the GPU at {short_bus_id(bus_id)}"
    return f"GPU {index}" if isinstance(bus_id, Missing) else f"GPU {index} ({short_bus_id(bus_id)})"


def name_pci_gpu(gpu: PciDevice) -> str:
    """A GPU that only the PCI bus shows, as a message names it."""
    return f"the GPU at {short_bus_id(gpu.bus_id)}"


def short_bus_id(bus_id: str) -> str:
    """A bus id without its domain where the domain is 0, as people write it: `5d:00.0`."""
    return bus_id.removeprefix("00000000:")
