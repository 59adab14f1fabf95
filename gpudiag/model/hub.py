"""Documents of the hub: several machines, each as its service reported it, and how that service answers."""

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from gpudiag.compat import StrEnum
from gpudiag.model.reading import Reading


class AnswerState(StrEnum):
    """How a machine's service answers."""

    ASKED = "asked"  # for the first time, and the answer is not there yet
    ANSWERS = "answers"
    SILENT = "silent"  # nothing came, or not in time
    REFUSED = "refused"  # HTTP, and no document: a token is missing, the service starts
    UNREADABLE = "unreadable"  # what came is not gpudiag's, or of a version that this one does not read


@dataclass(frozen=True, slots=True)
class MachineGpu:
    """One GPU of a machine, as its service reported it last."""

    uuid: Reading[str]
    nvml_index: Reading[int]
    name: Reading[str]
    health: str  # ok, warn, fail or error
    utilization_percent: Reading[int]
    memory_used_bytes: Reading[int]
    memory_total_bytes: Reading[int]
    temperature_celsius: Reading[int]
    power_draw_watts: Reading[float]
    serial: Reading[str]


@dataclass(frozen=True, slots=True)
class MachineFinding:
    """One finding of a machine, in a line and its remedy."""

    code: str
    outcome: str
    message: str
    remedy: str
    blocks_jobs: bool


@dataclass(frozen=True, slots=True)
class MachineReport:
    """What a machine's service reported last; `lacks` names what its version does not have."""

    at: datetime  # by the machine's own clock
    host: str
    simulated: str | None
    version: str
    driver_version: Reading[str]
    verdict: str | None
    headline: str
    gpus: tuple[MachineGpu, ...]
    users: tuple[str, ...]  # of processes on the GPUs
    jobs: tuple[str, ...]  # `slurm 4711`, `namespace/pod`
    finding_count: int
    findings: tuple[MachineFinding, ...]  # the first three, worst first
    lacks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HubMachine:
    """One machine: how it answers since when, and its last report.

    `verdict` is what it counts as now: its own while it answers, `error` while it does not, null before its
    first answer. `notes` are sentences about the report itself: an older version, a wrong clock, old numbers.
    """

    name: str
    page: str  # the address of its own page
    state: AnswerState
    since: datetime
    reason: str | None  # why there is no answer
    verdict: str | None
    verdict_since: datetime | None
    answered_at: datetime | None  # by the hub's clock, as the others here
    clock_offset_seconds: float | None  # ahead of the hub's clock; known to a second
    notes: tuple[str, ...]
    report: MachineReport | None


@dataclass(frozen=True, slots=True)
class HubCounts:
    """How many machines have which verdict, and their GPUs."""

    machines: int
    passed: int
    warned: int
    failed: int
    unknown: int  # ERROR by their own word, or without an answer
    silent: int  # of these: no answer
    gpus: int
    healthy_gpus: int


@dataclass(frozen=True, slots=True)
class HubDocument:
    """`gpudiag.hub/1`: all machines of a hub, worst first."""

    SCHEMA: ClassVar[str] = "gpudiag.hub/1"

    sequence: int
    at: datetime
    host: str
    version: str
    counts: HubCounts
    notes: tuple[str, ...]  # about the hub itself: its clock, a list of machines that cannot be read
    machines: tuple[HubMachine, ...]


@dataclass(frozen=True, slots=True)
class HubEvent:
    """One thing that happened to a machine: in its own words, or seen by the hub."""

    number: int
    at: datetime  # by the hub's clock
    machine: str
    kind: str  # verdict, silent, answers, listed, unlisted; or a kind of the machine's own timeline
    message: str
    severity: str  # pass, warn, fail or error


@dataclass(frozen=True, slots=True)
class HubEvents:
    """`gpudiag.hub_events/1`: what happened on all machines, oldest first."""

    SCHEMA: ClassVar[str] = "gpudiag.hub_events/1"

    entries: tuple[HubEvent, ...]
