"""The machine around the GPUs: processor, memory, kernel, PCI bus, network, container, allocation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpudiag.model.codec import noun
from gpudiag.model.reading import NOT_ASKED, Missing, Reading

if TYPE_CHECKING:  # model.codec loads it where the types are needed
    from gpudiag.model.host_state import HostState


DISPLAY_CLASSES = ("0300", "0302")  # PCI classes of a GPU: VGA, 3D


@noun
class PciDevice:
    """One NVIDIA function on the PCI bus, as the kernel sees it without any driver's help.

    `slot_*` are the limits of the bridge above it; speeds are PCIe generations (1 to 6).
    """

    bus_id: str  # dddddddd:bb:dd.f
    vendor_id: str  # 10de
    device_id: str
    class_id: str  # of DISPLAY_CLASSES, or 0680 (bridge: an NVSwitch)
    driver: Reading[str]  # the kernel driver bound to it
    numa_node: Reading[int]
    link_generation: Reading[int]
    link_generation_max: Reading[int]
    link_width: Reading[int]
    link_width_max: Reading[int]
    slot_generation_max: Reading[int]
    slot_width_max: Reading[int]
    errors_corrected: Reading[int] = NOT_ASKED  # PCIe Advanced Error Reporting, since boot, as the next two
    errors_nonfatal: Reading[int] = NOT_ASKED
    errors_fatal: Reading[int] = NOT_ASKED


@noun
class NetworkInterface:
    """One network interface: its state, speed and addresses."""

    name: str
    up: bool
    loopback: bool
    mtu: Reading[int]
    speed_mbit_per_second: Reading[int]
    addresses: tuple[str, ...]


@noun
class Container:
    """The container this process runs in."""

    runtime: str  # docker, podman, kubernetes, lxc, or the word that the runtime left
    container_id: Reading[str]
    sign: Reading[str] = NOT_ASKED  # what shows it: a file, /proc/self/cgroup, a variable of process 1

    @property
    def words(self) -> str:
        """The runtime and the sign, as they stand in brackets: `docker, by /.dockerenv`."""
        return self.runtime if isinstance(self.sign, Missing) else f"{self.runtime}, by {self.sign}"


@noun
class Machine:
    """Facts about one host, each read under one root so that a scenario can set it."""

    hostname: str
    kernel_release: Reading[str]
    operating_system: Reading[str]
    boot_id: Reading[str]
    processor: Reading[str]
    processor_architecture: Reading[str]
    logical_processors: Reading[int]
    logical_processors_allowed: Reading[int]  # by affinity
    memory_total_bytes: Reading[int]
    memory_available_bytes: Reading[int]
    shared_memory_total_bytes: Reading[int]  # /dev/shm
    kernel_driver_version: Reading[str]  # /proc/driver/nvidia/version
    kernel_driver_flavor: Reading[str]  # open or proprietary
    kernel_modules: Reading[tuple[str, ...]]  # of those that concern GPUs: nvidia*, nouveau
    pci_devices: Reading[tuple[PciDevice, ...]]
    device_nodes: Reading[tuple[str, ...]]  # /dev/nvidia*, /dev/dxg
    interfaces: Reading[tuple[NetworkInterface, ...]]
    container: Container | None  # None: not in a container
    allocation: dict[str, str]  # the environment variables that hand out GPUs, as they are set
    state: Reading[HostState] = NOT_ASKED
