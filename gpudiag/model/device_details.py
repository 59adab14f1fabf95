"""Parts of a Device that have fields of their own: throttle times, link errors, fabric, peers."""

from gpudiag.model.noun import noun
from gpudiag.model.reading import Reading


@noun
class ThrottleSeconds:
    """For how long, since the driver was loaded, something kept the clocks down (nvmlViolationTime_t)."""

    power: Reading[float]
    thermal: Reading[float]
    sync_boost: Reading[float]
    board_limit: Reading[float]
    reliability: Reading[float]


@noun
class PcieErrorCounts:
    """PCIe errors that the GPU's end of the link has counted, since the driver was loaded."""

    correctable: Reading[int]
    nonfatal: Reading[int]
    fatal: Reading[int]
    bad_tlp: Reading[int]
    bad_dllp: Reading[int]
    naks_received: Reading[int]
    naks_sent: Reading[int]


@noun
class FabricState:
    """How far a GPU's registration with the NVLink fabric is, and how the fabric says it is.

    `state` is not_started, in_progress or completed; `status` is `success` or NVML's error. `health` is
    healthy, unhealthy or limited_capacity; `faults` are the words of the health mask that are true.
    """

    state: str
    status: str
    clique_id: Reading[int]
    cluster_uuid: Reading[str]
    health: Reading[str]
    faults: Reading[tuple[str, ...]]


@noun
class PeerAccess:
    """What lies between two GPUs, and whether one may read the other's memory.

    `path` is the nearest common ancestor: board, pcie_switch, pcie_switches, host_bridge, numa_node or
    system. `read` and `nvlink` are NVML's words: ok, chipset_not_supported, gpu_not_supported,
    topology_not_supported, disabled, not_supported or unknown.
    """

    bus_id: str  # of the other GPU
    path: Reading[str]
    read: Reading[str]
    nvlink: Reading[str]
