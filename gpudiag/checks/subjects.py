"""What findings are about, and how a message names it; and what checks of the host share."""

from gpudiag.checks.gpu.availability import granted
from gpudiag.checks.registry import FindingKind
from gpudiag.model.context import Context
from gpudiag.model.device import Device, Snapshot
from gpudiag.model.evidence import DeviceSubject, Evidence, HostSubject
from gpudiag.model.finding import Finding, Owner
from gpudiag.model.host import PciDevice
from gpudiag.model.host_state import HostState
from gpudiag.model.reading import Missing

# --- GPUs


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


def kernel_address(bus_id: str) -> str:
    """A bus id as a search in the kernel's log finds it, without a domain of 0: `5d:00.0`, `0009:01:00.0`."""
    domain, _, rest = bus_id.partition(":")
    return f"{int(domain, 16):04x}:{rest}" if int(domain, 16) else rest


# --- the host


def host_state(context: Context) -> HostState:
    """The host's state; the need `host_state` makes sure that it is there."""
    state = context.snapshot.machine.state
    assert not isinstance(state, Missing)  # noqa: S101 - the runner answers for the need
    return state


def host_finding(
    context: Context, kind: FindingKind, message: str, *evidence: Evidence, owner: Owner | None = None
) -> Finding:
    """A finding of that kind about this machine; `owner` replaces the catalogue's."""
    return kind.finding(HostSubject(context.snapshot.host), message, *evidence, owner=owner)


def usable_gpus(context: Context) -> int:
    """How many GPUs the job has: what it was given, or all that the driver lists."""
    here = len(context.snapshot.devices)
    grant = granted(context.snapshot.machine.allocation)
    return here if grant is None else min(here, grant[1])


def is_virtual(state: HostState) -> bool:
    """Whether a hypervisor runs this machine: it hides clocks, bridges and governors."""
    layout = state.processor_layout
    return not isinstance(layout, Missing) and layout.virtual_machine
