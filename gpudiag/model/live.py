"""What the service shows of a machine at one tick: small enough for a stream, whole enough for a page."""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import ClassVar

from gpudiag.model.codec import FLATTEN
from gpudiag.model.device import DeviceId, GpuProcess, MigInstance, SourceStatus
from gpudiag.model.finding import Finding
from gpudiag.model.reading import NOT_ASKED, Reading


class SamplerState(StrEnum):
    """How the sampler is doing."""

    STARTING = "starting"
    OK = "ok"
    SLOW = "slow"  # nobody looks: every 5 s
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
    signs_of_use: tuple[str, ...] = ()  # why it is not free; a container may show load and no process


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

    `findings` are the first few, worst first; `findings_version` changes with them.
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
