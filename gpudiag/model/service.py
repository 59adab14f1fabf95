"""What the service answers beside the tick: one GPU whole, who uses what, how it is wired, what is wrong."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar

from gpudiag.model.codec import FLATTEN
from gpudiag.model.device import Device, Disagreement, GpuProcess, SourceStatus, TorchFacts
from gpudiag.model.device import DeviceView as DeviceView
from gpudiag.model.explanation import Explanation
from gpudiag.model.finding import Finding
from gpudiag.model.live import LiveDevice
from gpudiag.model.reading import Reading


@dataclass(frozen=True, slots=True)
class DeviceDocument:
    """`gpudiag.device/1`: one GPU whole, its row of the tick, and the findings about it."""

    SCHEMA: ClassVar[str] = "gpudiag.device/1"

    at: datetime
    host: str
    device: Device
    live: LiveDevice
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """One process on one GPU; an idle holder has held over 1 GiB of a GPU at 0 % for 15 minutes."""

    uuid: Reading[str]
    nvml_index: Reading[int]
    process: GpuProcess = field(metadata=FLATTEN)
    idle_since: datetime | None  # the GPU's utilisation has been 0 since
    idle_holder: bool


@dataclass(frozen=True, slots=True)
class UserUse:
    """What one user holds of the machine's GPUs."""

    user: str
    memory_used_bytes: int
    gpu_count: int
    process_count: int


@dataclass(frozen=True, slots=True)
class Processes:
    """`gpudiag.processes/1`: who uses which GPU."""

    SCHEMA: ClassVar[str] = "gpudiag.processes/1"

    at: datetime
    processes: tuple[ProcessUse, ...]
    users: tuple[UserUse, ...]


@dataclass(frozen=True, slots=True)
class TopologyDevice:
    """One GPU's place in the machine."""

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


@dataclass(frozen=True, slots=True)
class MeasuredLink:
    """What was measured between two GPUs, the last time: the stored metric, which names the method."""

    metric: str
    value: float
    unit: str
    at: datetime


@dataclass(frozen=True, slots=True)
class TopologyLink:
    """What lies between two GPUs, in the words of `PeerAccess`."""

    from_uuid: Reading[str]
    to_uuid: Reading[str]
    path: Reading[str]
    read: Reading[str]
    nvlink: Reading[str]
    nvlink_count: Reading[int]  # links that lead straight to the other GPU
    measured: MeasuredLink | None


@dataclass(frozen=True, slots=True)
class Topology:
    """`gpudiag.topology/1`: the GPUs and what lies between each two."""

    SCHEMA: ClassVar[str] = "gpudiag.topology/1"

    host: str
    devices: tuple[TopologyDevice, ...]
    links: tuple[TopologyLink, ...]


@dataclass(frozen=True, slots=True)
class Sources:
    """`gpudiag.sources/1`: the sources side by side, and where they differ."""

    SCHEMA: ClassVar[str] = "gpudiag.sources/1"

    at: datetime
    sources: tuple[SourceStatus, ...]
    views: tuple[DeviceView, ...]
    disagreements: tuple[Disagreement, ...]
    torch: Reading[TorchFacts]


@dataclass(frozen=True, slots=True)
class Findings:
    """`gpudiag.findings/1`: the verdict of the instant checks and every finding, worst first."""

    SCHEMA: ClassVar[str] = "gpudiag.findings/1"

    version: int  # grows with every change
    verdict: str
    at: datetime
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class ExplanationDocument:
    """`gpudiag.explanation/1`: one topic explained."""

    SCHEMA: ClassVar[str] = "gpudiag.explanation/1"

    explanation: Explanation = field(metadata=FLATTEN)


@dataclass(frozen=True, slots=True)
class ServiceHealth:
    """`gpudiag.health/1`: whether the service has fresh data, and what keeps it from that."""

    SCHEMA: ClassVar[str] = "gpudiag.health/1"

    ready: bool
    version: str
    started_at: datetime
    sampler_state: str
    reason: str | None
    wedged_call: str | None
    last_good_at: Reading[datetime]
    stuck_children: int  # of the sampler, that the kernel cannot end
    restarts: int
    stream_clients: int
    warnings: tuple[str, ...] = ()  # history that is not written, and the like


@dataclass(frozen=True, slots=True)
class Session:
    """`gpudiag.session/1`: what this caller may do."""

    SCHEMA: ClassVar[str] = "gpudiag.session/1"

    role: str | None  # read or act
    actions_allowed: bool
    token_required: bool
