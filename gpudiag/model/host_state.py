"""How a host is set up and how it is doing: limits, cgroup, processors, disks, clock, fabric, settings."""

from gpudiag.model.codec import noun
from gpudiag.model.reading import NOT_ASKED, Reading


@noun
class ProcessLimits:
    """The limits of this process, which its ranks inherit; None is unlimited."""

    locked_memory_bytes: Reading[int | None]
    open_files: Reading[int | None]
    processes: Reading[int | None]


@noun
class CgroupLimits:
    """What the control group of this process may use; None is no limit."""

    path: str
    memory_limit_bytes: Reading[int | None]
    memory_used_bytes: Reading[int]
    processors_limit: Reading[float | None]  # quota divided by period: 2.5 processors
    processes_limit: Reading[int | None]


@noun
class NumaNode:
    """One NUMA node and its processors, as a kernel list such as `0-55,112-167`."""

    node: int
    processors: str


@noun
class ProcessorLayout:
    """Which processors there are where, which this process may use, and how they are clocked."""

    allowed: Reading[str]  # a kernel list
    numa_nodes: Reading[tuple[NumaNode, ...]]
    governors: Reading[tuple[str, ...]]  # each that is in use, once
    virtual_machine: bool  # the processor reports a hypervisor


@noun
class Filesystem:
    """One place that a training job writes to, and the file system that holds it."""

    path: str
    total_bytes: Reading[int]
    available_bytes: Reading[int]  # to this user
    files_total: Reading[int]  # 0 where the file system keeps no count
    files_available: Reading[int]
    read_only: Reading[bool]


@noun
class ClockState:
    """What the kernel counts time by, and whether it is set by a time server."""

    source: Reading[str]
    sources_available: Reading[tuple[str, ...]]
    synchronized: Reading[bool]


@noun
class HostMemoryErrors:
    """ECC errors of the host's memory since boot (EDAC), over all memory controllers."""

    corrected: int
    uncorrected: int


@noun
class InfinibandPort:
    """One port of an RDMA device (InfiniBand or Ethernet), with its error counters by the kernel's names."""

    device: str  # mlx5_0
    port: int
    link_layer: Reading[str]  # InfiniBand or Ethernet
    state: Reading[str]  # ACTIVE, INIT, DOWN
    physical_state: Reading[str]  # LinkUp, Polling, Disabled
    rate_gbit_per_second: Reading[float]
    numa_node: Reading[int]
    counters: dict[str, int]
    board: Reading[str] = NOT_ASKED  # the maker's id of the card, alike on equal cards: MT_0000000838
    virtual_function: Reading[bool] = (
        NOT_ASKED  # of SR-IOV: it is for a guest or a pod, and down until one has it
    )


@noun
class PciPlace:
    """Where a GPU, an NVSwitch or a network card is on the PCI bus, and what is near it.

    `bridges` are the bus ids of the bridges above it, from the root port down; the last one is its slot. Two
    functions are below one switch if they share a bridge.
    """

    bus_id: str  # dddddddd:bb:dd.f
    kind: str  # gpu, nvswitch or nic
    root: str  # the host bridge, as the kernel names it: pci0000:50
    bridges: tuple[str, ...]
    numa_node: Reading[int]
    processors: Reading[str]  # near it, as a kernel list
    link_generation: Reading[int]  # of PCIe, now
    link_width: Reading[int]
    rdma_devices: tuple[str, ...] = ()  # mlx5_0
    interfaces: tuple[str, ...] = ()  # eth0
    virtual_function: bool = False  # of SR-IOV


@noun
class IommuState:
    """Whether an IOMMU is on, and how it maps: identity (pass-through), dma, dma-fq ..."""

    groups: int
    kinds: tuple[str, ...]  # each kind of domain that a GPU is in, once


@noun
class FabricManager:
    """The service that sets up NVSwitches: whether it runs, and of which version it is."""

    running: bool
    version: Reading[str]


@noun
class Settings:
    """What steers CUDA, NCCL, gloo and torch here: variables, and NCCL's configuration files.

    Only variables of those families are kept. `nccl_files` maps the path of each configuration file that
    there is to its settings; they count where the environment does not set the same.
    """

    environment: dict[str, str]
    nccl_files: Reading[dict[str, dict[str, str]]]


@noun
class HostState:
    """Everything about the host that costs more than a glance; read when the host is to be judged."""

    user: Reading[str]
    shared_memory_available_bytes: Reading[int]
    process_limits: Reading[ProcessLimits]
    cgroup: Reading[CgroupLimits]
    processor_layout: Reading[ProcessorLayout]
    filesystems: Reading[tuple[Filesystem, ...]]
    clock: Reading[ClockState]
    memory_errors: Reading[HostMemoryErrors]
    iommu: Reading[IommuState]
    redirecting_bridges: Reading[tuple[str, ...]]  # PCI bridges above GPUs that send peer traffic upwards
    name_addresses: Reading[tuple[str, ...]]  # what the host's own name resolves to
    infiniband_ports: Reading[tuple[InfinibandPort, ...]]
    fabric_manager: Reading[FabricManager]
    settings: Reading[Settings] = NOT_ASKED
    pci_places: Reading[tuple[PciPlace, ...]] = NOT_ASKED  # of GPUs, NVSwitches and network cards, by bus id


def parse_processor_list(text: str) -> frozenset[int]:
    """The processors that a kernel list such as `0-3,8` names."""
    ranges = [part.partition("-") for part in text.strip().split(",") if part]
    return frozenset(
        number for first, _, last in ranges for number in range(int(first), int(last or first) + 1)
    )
