"""Machines for the tests of checks: what stands on the bus, in /dev and in the environment."""

from typing import Any

from gpudiag.model.context import Context
from gpudiag.model.device import Device, Snapshot, SourceState, SourceStatus
from gpudiag.model.host import Container, Machine, PciDevice
from gpudiag.model.reading import Missing, MissingReason
from tests.unit.model.nouns import make_device, make_machine, make_snapshot

ABSENT = Missing(MissingReason.SOURCE_ABSENT)
LOST = Missing(MissingReason.DEVICE_LOST, "GPU is lost (NVML 15)")
LATE = Missing(MissingReason.TIMED_OUT, "nvmlDeviceGetName did not come back in 5 s")
CONTAINER = Container("docker", "0123456789ab")


def make_pci_gpu(place: int, **facts: Any) -> PciDevice:
    """The GPU on the bus where `make_device(place)` is."""
    values: dict[str, Any] = {
        "bus_id": f"00000000:{place + 0x19:02x}:00.0",
        "vendor_id": "10de",
        "device_id": "2330",
        "class_id": "030200",
        "driver": "nvidia",
    }
    names = ("numa_node", "link_generation", "link_generation_max", "link_width", "link_width_max")
    unknown = dict.fromkeys((*names, "slot_generation_max", "slot_width_max"), ABSENT)
    return PciDevice(**{**unknown, **values, **facts})


def make_bare_machine(gpus: int = 0, **facts: Any) -> Machine:
    """A machine on metal with that many GPUs on the bus and, where there are any, a loaded driver."""
    driver = {
        "kernel_driver_version": "580.105.08" if gpus else ABSENT,
        "device_nodes": tuple(f"/dev/nvidia{place}" for place in range(gpus)),
        "pci_devices": tuple(make_pci_gpu(place) for place in range(gpus)),
    }
    return make_machine(**{**driver, **facts})


def make_broken_snapshot(state: SourceState, machine: Machine, reason: str = "NVML's words") -> Snapshot:
    """A machine on which NVML does not answer."""
    return make_snapshot(machine=machine, sources=(SourceStatus("nvml", state, reason),))


def look_at(snapshot: Snapshot, **values: Any) -> Context:
    """The context of a check that sees nothing but a snapshot."""
    return Context(snapshot, **values)


def make_eight(**changes: Any) -> list[Device]:
    return [make_device(place, recovery_action="none", **changes) for place in range(8)]
