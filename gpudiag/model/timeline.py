"""What happened on a machine, in order: Xids, GPUs lost and found, throttling, driver, sampler, runs."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import ClassVar


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

    `times` are Unix seconds, one for each point; `resolution_seconds` is what is stored for that range.
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
