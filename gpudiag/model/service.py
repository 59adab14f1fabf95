"""Documents of the HTTP API: the live tick, the timeline, and the other responses."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar

from gpudiag.compat import StrEnum
from gpudiag.model.codec import FLATTEN
from gpudiag.model.device import (
    Device,
    DeviceId,
    Disagreement,
    GpuProcess,
    MigInstance,
    SourceStatus,
    TorchFacts,
)
from gpudiag.model.device import DeviceView as DeviceView
from gpudiag.model.explanation import Explanation
from gpudiag.model.finding import Finding, JoinedFinding
from gpudiag.model.host_activity import HostActivity
from gpudiag.model.owners import JobUse, PodUse
from gpudiag.model.reading import NOT_ASKED, Reading

# --- what happened


class TimelineKind(StrEnum):
    """What an entry reports."""

    XID = "xid"
    GPU_LOST = "gpu_lost"
    GPU_SILENT = "gpu_silent"
    GPU_BACK = "gpu_back"
    THROTTLE_START = "throttle_start"
    THROTTLE_END = "throttle_end"
    DRIVER = "driver"
    SAMPLER = "sampler"
    RUN = "run"
    JOB = "job"


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One thing that happened; `severity` is pass, warn or fail."""

    number: int
    at: datetime
    kind: TimelineKind
    message: str
    severity: str = "pass"
    uuid: str | None = None
    nvml_index: int | None = None
    xid_code: int | None = None
    reasons: tuple[str, ...] = ()  # of throttling


@dataclass(frozen=True, slots=True)
class XidTally:
    """How often NVML reported an Xid of a GPU, and when the last time.

    Without a UUID the index is all that is known.
    """

    uuid: str | None
    nvml_index: int | None
    xid_code: int
    count: int
    last_at: datetime


@dataclass(frozen=True, slots=True)
class Timeline:
    """`gpudiag.timeline/1`: the newest entries, oldest first."""

    SCHEMA: ClassVar[str] = "gpudiag.timeline/1"

    entries: tuple[TimelineEntry, ...]


@dataclass(frozen=True, slots=True)
class DeviceSeries:
    """The series of one GPU; null where there is no reading."""

    uuid: str
    nvml_index: int | None
    name: str | None
    series: dict[str, tuple[float | None, ...]]


@dataclass(frozen=True, slots=True)
class Series:
    """`gpudiag.series/1`: readings over a range of time.

    `times` are Unix seconds, one for each point; `resolution_seconds` is how far apart nine in
    ten samples of that range are at most: 1 s, 5 s where nobody looked, 10 s of the day before the last hour.
    """

    SCHEMA: ClassVar[str] = "gpudiag.series/1"

    first_at: float  # Unix seconds, as the next two
    from_at: float
    to_at: float
    step_seconds: float
    resolution_seconds: float
    times: tuple[float, ...]
    devices: tuple[DeviceSeries, ...]
    events: tuple[TimelineEntry, ...] = ()


# --- one tick


class SamplerState(StrEnum):
    """How the sampler is doing."""

    STARTING = "starting"
    OK = "ok"
    SLOW = "slow"  # it does not keep its pace: calls into the driver take too long
    PAUSED = "paused"  # a bandwidth test of ours runs, and must not be disturbed
    WEDGED = "wedged"  # a call does not come back
    NO_GPU = "no_gpu"  # NVML answers, and lists none
    FAILED = "failed"  # NVML cannot be asked
    OFF = "off"  # --no-poll


@dataclass(frozen=True, slots=True)
class SamplerStatus:
    """The sampler's state since when, and how old the numbers may be.

    `wedged_call` names the NVML call that has not come back. Numbers older than `stale_after_seconds`
    should not be shown as current.
    """

    state: SamplerState
    since: datetime
    interval_seconds: float
    restarts: int
    stale_after_seconds: float
    reason: str | None = None
    last_good_at: Reading[datetime] = NOT_ASKED
    wedged_call: str | None = None
    tick_seconds: Reading[float] = NOT_ASKED  # what the last tick took


@dataclass(frozen=True, slots=True)
class LastGood:
    """The last good numbers of a GPU that does not answer now."""

    at: datetime
    utilization_percent: Reading[int]
    memory_used_bytes: Reading[int]
    temperature_celsius: Reading[int]
    power_draw_watts: Reading[float]
    sm_clock_mhz: Reading[int]


@dataclass(frozen=True, slots=True)
class LiveDevice:
    """One GPU at one tick: the readings of a first screen, its health, and who uses it.

    `health` is ok, warn, fail or error: the worst of the findings about this GPU, whose codes follow.
    `throttled`: a reason holds the clocks down that costs speed for a cause (heat, power brake).
    `last_good_at` of a GPU that this service has never read is when an earlier one saw it.
    """

    id: DeviceId = field(metadata=FLATTEN)
    responding: Reading[bool]
    health: str
    finding_codes: tuple[str, ...]
    last_good_at: Reading[datetime]
    name: Reading[str]
    utilization_percent: Reading[int]
    memory_utilization_percent: Reading[int]
    memory_total_bytes: Reading[int]
    memory_used_bytes: Reading[int]
    memory_free_bytes: Reading[int]
    temperature_celsius: Reading[int]
    memory_temperature_celsius: Reading[int]
    temperature_slowdown_celsius: Reading[int]
    power_draw_watts: Reading[float]
    power_limit_enforced_watts: Reading[float]
    sm_clock_mhz: Reading[int]
    sm_clock_max_mhz: Reading[int]
    memory_clock_mhz: Reading[int]
    pstate: Reading[int]
    clocks_event_reasons: Reading[tuple[str, ...]]
    throttled: Reading[bool]
    fan_speed_percent: Reading[int]
    ecc_uncorrected_volatile: Reading[int]
    mig_mode: Reading[str]
    recovery_action: Reading[str]
    mig_instances: Reading[tuple[MigInstance, ...]]
    processes: Reading[tuple[GpuProcess, ...]]
    last_good: LastGood | None = None
    signs_of_use: tuple[str, ...] = ()  # a container may show load and no process
    not_free_because: tuple[str, ...] = ()  # as in `gpudiag list`: use, and also a fault that a check found
    pods: tuple[PodUse, ...] = ()  # by the kubelet, where the service may ask it
    slurm_jobs: tuple[JobUse, ...] = ()
    sm_activity_percent: Reading[float] = NOT_ASKED  # Hopper and later, as all that follow
    tensor_activity_percent: Reading[float] = NOT_ASKED
    pcie_transmitted_bytes_per_second: Reading[float] = NOT_ASKED
    pcie_received_bytes_per_second: Reading[float] = NOT_ASKED
    nvlink_transmitted_bytes_per_second: Reading[float] = NOT_ASKED
    nvlink_received_bytes_per_second: Reading[float] = NOT_ASKED


@dataclass(frozen=True, slots=True)
class ActiveRun:
    """A run that waits or goes on, in a line."""

    id: str
    kind: str
    state: str
    started_at: datetime | None
    progress: float | None  # 0 to 1, where it is known


@dataclass(frozen=True, slots=True)
class Live:
    """`gpudiag.live/1`: every GPU at one tick, the verdict of the instant checks, and how the sampler is.

    `findings` are the first few, worst first; `findings_version` changes with them. `verdict_since`: when
    this service first came to the verdict that it has had since.
    """

    SCHEMA: ClassVar[str] = "gpudiag.live/1"

    sequence: int
    at: datetime
    host: str
    simulated: str | None
    version: str
    driver_version: Reading[str]
    cuda_driver_version: Reading[str]
    verdict: str | None  # None before anything was judged
    headline: str
    sampler: SamplerStatus
    sources: tuple[SourceStatus, ...]
    devices: tuple[LiveDevice, ...]
    findings_version: int
    finding_count: int
    findings: tuple[Finding, ...]
    active_runs: tuple[ActiveRun, ...] = ()
    host_activity: Reading[HostActivity] = NOT_ASKED
    verdict_since: datetime | None = None


# --- what is answered beside the tick


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
    """One process on one GPU; an idle holder has held over 1 GiB of a GPU at 0 % for 15 minutes.

    `recent_...` are its memory and its share of the SMs at `Processes.times`; null where it was not there.
    """

    uuid: Reading[str]
    nvml_index: Reading[int]
    process: GpuProcess = field(metadata=FLATTEN)
    idle_since: datetime | None  # the GPU's utilisation has been 0 since
    idle_holder: bool
    recent_memory_bytes: tuple[int | None, ...] = ()
    recent_sm_percent: tuple[int | None, ...] = ()


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
    times: tuple[float, ...] = ()  # Unix seconds, of the last ten minutes


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
    """`gpudiag.findings/1`: the verdict of the instant checks and every finding, worst first.

    `joined` has them as people read them: what several GPUs share once.
    """

    SCHEMA: ClassVar[str] = "gpudiag.findings/1"

    version: int  # grows with every change
    verdict: str
    at: datetime
    findings: tuple[Finding, ...]
    joined: tuple[JoinedFinding, ...] = ()


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
