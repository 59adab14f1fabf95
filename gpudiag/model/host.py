"""The machine around the GPUs: processor, memory, kernel, PCI bus, network, container, allocation."""

from __future__ import annotations

from gpudiag.model.codec import noun
from gpudiag.model.host_state import HostState
from gpudiag.model.reading import NOT_ASKED, Missing, Reading

NVIDIA_VENDOR_ID = "10de"
DISPLAY_CLASSES = ("0300", "0302")  # PCI classes of a GPU: VGA, 3D
_PASSED_THROUGH = "vfio-pci"  # the driver that hands a device over to a virtual machine
_DRIVER = "nvidia"
_FIRST_OF_BUS = "00.0"


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
    virtual_function: Reading[bool] = NOT_ASKED  # of SR-IOV: its folder has `physfn`


def own_gpus(functions: tuple[PciDevice, ...]) -> tuple[PciDevice, ...]:
    """The functions that are GPUs for this machine's own use: what its driver is to list.

    Where NVIDIA's driver has GPUs, one that no driver has is none of them: the driver ignores old cards, and
    an administrator may have unbound it.
    """
    whole = gpus_on_bus(functions)
    has_driver = any(one.driver == _DRIVER for one in whole)
    return tuple(one for one in whole if not (has_driver and isinstance(one.driver, Missing)))


def gpus_on_bus(functions: tuple[PciDevice, ...]) -> tuple[PciDevice, ...]:
    """The functions that are GPUs of this machine, bound to a driver or not.

    Not: audio, USB and NVSwitch functions; what a virtual machine has (vfio-pci) or may get (virtual
    functions of SR-IOV, and other functions on the bus of a GPU, for a PCI Express link has one device).
    """
    displays = [
        one
        for one in functions
        if one.vendor_id == NVIDIA_VENDOR_ID
        and one.class_id[:4] in DISPLAY_CLASSES
        and one.driver != _PASSED_THROUGH
        and one.virtual_function is not True
    ]
    return tuple(one for one in displays if not _is_part_of_another(one, displays))


def passed_through(functions: tuple[PciDevice, ...]) -> tuple[PciDevice, ...]:
    """The functions that are GPUs, and that virtual machines have (vfio-pci)."""
    return tuple(
        one
        for one in functions
        if one.vendor_id == NVIDIA_VENDOR_ID
        and one.class_id[:4] in DISPLAY_CLASSES
        and one.driver == _PASSED_THROUGH
    )


def _is_part_of_another(one: PciDevice, displays: list[PciDevice]) -> bool:
    """Whether the function is another one of the board whose GPU is function 0 of its bus."""
    bus, _, place = one.bus_id.rpartition(":")
    first = f"{bus}:{_FIRST_OF_BUS}"
    return place != _FIRST_OF_BUS and any(other.bus_id == first for other in displays)


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
    kernel_modules: Reading[tuple[str, ...]]  # of those that concern GPUs: nvidia*, nouveau, ib_umad, mlx5_ib
    pci_devices: Reading[tuple[PciDevice, ...]]
    device_nodes: Reading[tuple[str, ...]]  # /dev/nvidia*, /dev/dxg
    interfaces: Reading[tuple[NetworkInterface, ...]]
    container: Container | None  # None: not in a container
    allocation: dict[str, str]  # the environment variables that hand out GPUs, as they are set
    preloaded_libraries: Reading[tuple[str, ...]] = NOT_ASKED  # of /etc/ld.so.preload: in every program
    memory_only_nodes_used_bytes: Reading[int] = (
        NOT_ASKED  # of NUMA nodes without a processor: on GH200, GPU memory
    )
    job_cgroup: Reading[str] = (
        NOT_ASKED  # the batch job in whose control group this process is: `Slurm job 7`
    )
    state: Reading[HostState] = NOT_ASKED
