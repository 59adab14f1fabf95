"""How a machine's GPUs are wired: links, PCI bridges, NUMA nodes, network cards, what NCCL takes of them."""

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from gpudiag.model.finding import Finding, Outcome
from gpudiag.model.reading import NOT_ASKED, Reading


@dataclass(frozen=True, slots=True)
class TopologyDevice:
    """One GPU's place in the machine.

    `root` is its host bridge as the kernel names it, `bridges` the bus ids of the PCI bridges below that,
    from the root port to the slot. `nics` are the network cards that NCCL takes for it, in the order of its
    channels.
    """

    uuid: Reading[str]
    bus_id: Reading[str]
    nvml_index: Reading[int]
    name: Reading[str]
    numa_node: Reading[int]
    pcie_generation: Reading[int]
    pcie_width: Reading[int]
    pcie_generation_slot_max: Reading[int]
    pcie_width_slot_max: Reading[int]
    nvlinks_active: Reading[int]
    nvlinks_total: Reading[int]
    processors: Reading[str] = NOT_ASKED  # near it, as a kernel list
    root: Reading[str] = NOT_ASKED
    bridges: Reading[tuple[str, ...]] = NOT_ASKED
    nvlink_bytes_per_second: Reading[float] = NOT_ASKED  # of one link, in one direction
    nics: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TopologyNic:
    """One network card: an RDMA device, or a network interface without RDMA.

    `number` is that of NIC0, NIC1 ... in `nvidia-smi topo -m`, which lists RDMA devices only. `active`: a
    port of it is up.
    """

    name: str  # mlx5_0; eth0 without RDMA
    bus_id: str
    number: Reading[int]
    interfaces: tuple[str, ...]
    numa_node: Reading[int]
    processors: Reading[str]
    root: str
    bridges: tuple[str, ...]
    link_layer: Reading[str]  # InfiniBand or Ethernet
    active: Reading[bool]
    rate_gbit_per_second: Reading[float]
    pcie_generation: Reading[int]
    pcie_width: Reading[int]
    virtual_function: bool


@dataclass(frozen=True, slots=True)
class TopologySwitch:
    """One NVSwitch on the PCI bus."""

    bus_id: str
    numa_node: Reading[int]
    root: str
    bridges: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TopologyNode:
    """One NUMA node: its processors as a kernel list, and the bus ids of the GPUs and network cards in it."""

    node: int
    processors: str
    gpus: tuple[str, ...]
    nics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MeasuredLink:
    """What was measured between two GPUs, the last time: the stored metric, which names the method."""

    metric: str
    value: float
    unit: str
    at: datetime


@dataclass(frozen=True, slots=True)
class TopologyLink:
    """What lies between two GPUs, in the words of `PeerAccess`, in one direction.

    `label` is the word of `nvidia-smi topo -m` (NV18, PIX, PXB, PHB, NODE, SYS). `nccl_path` is NCCL's type
    of the path as it stands in its log (NVL, NVB, PIX, PXB, PHB, SYS), and `nccl_transport` what it takes:
    P2P, SHM or NET.
    """

    from_uuid: Reading[str]
    to_uuid: Reading[str]
    path: Reading[str]
    read: Reading[str]
    nvlink: Reading[str]
    nvlink_count: Reading[int]  # links that lead straight to the other GPU
    measured: MeasuredLink | None
    label: Reading[str] = NOT_ASKED
    bytes_per_second: Reading[float] = (
        NOT_ASKED  # all NVLinks between the two, else the slower PCIe link, by their rate
    )
    nccl_path: Reading[str] = NOT_ASKED
    nccl_transport: Reading[str] = NOT_ASKED


@dataclass(frozen=True, slots=True)
class NicPath:
    """What lies between a GPU and a network card; `path` and `label` as in `TopologyLink`.

    `nccl_path` may also be PXN (over the GPU beside the card) or P2C (over NVLink-C2C). `gpu_direct`: NCCL
    lets the card read and write the GPU's memory.
    """

    uuid: Reading[str]
    nic: str
    path: Reading[str]
    label: Reading[str]
    nccl_path: Reading[str]
    gpu_direct: Reading[bool]
    bytes_per_second: Reading[float] = NOT_ASKED  # the slower PCIe link of the two, by its rate


@dataclass(frozen=True, slots=True)
class NcclLevels:
    """The farthest path over which NCCL uses each way here, and the setting for it.

    It is None where it is NCCL's own.
    """

    p2p: str  # a path type; LOC: P2P is off
    p2p_setting: str | None
    gpu_direct: str
    gpu_direct_setting: str | None
    gpu_direct_ready: Reading[bool]  # the kernel has a way for network cards to reach GPU memory
    version: str  # of NCCL, whose rules these are


@dataclass(frozen=True, slots=True)
class Topology:
    """`gpudiag.topology/1`: a machine's GPUs, what lies between each two, and between GPUs and network cards.

    `findings` are those of the checks of links and places, worst first; `verdict` is None where no check has
    run yet.
    """

    SCHEMA: ClassVar[str] = "gpudiag.topology/1"

    host: str
    devices: tuple[TopologyDevice, ...]
    links: tuple[TopologyLink, ...]
    simulated: str | None = None
    nics: tuple[TopologyNic, ...] = ()
    nic_paths: tuple[NicPath, ...] = ()
    switches: tuple[TopologySwitch, ...] = ()
    numa_nodes: Reading[tuple[TopologyNode, ...]] = NOT_ASKED
    nccl: NcclLevels | None = None
    verdict: Outcome | None = None
    findings: tuple[Finding, ...] = ()
