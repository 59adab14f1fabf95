"""The report's nouns: `gpudiag.confirmation/2`, what a run on real GPUs confirmed; its anonymous form."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from gpudiag.model.device import Snapshot
from gpudiag.model.finding import Outcome
from gpudiag.model.reading import Missing


@dataclass(frozen=True, slots=True)
class StepSeen:
    """One step: how it ended, in a sentence, and where its output lies."""

    name: str
    confirms: str
    command: str
    outcome: Outcome
    sentence: str
    seconds: float
    deadline_seconds: float
    stdout: str | None  # file names within the folder; None where it did not run
    stderr: str | None


@dataclass(frozen=True, slots=True)
class Speed:
    """One speed, as gpudiag measured it and as a bare torch loop did in the same run.

    Bytes or floating-point operations per second, each run's median; `best` are each run's best, and
    `meanwhile` is what the GPU did in the last one, by NVML: clock, power and reasons. `ratio` is gpudiag's
    median over the loop's, None until both are there. `loop_spread` is how far the loop's own rounds lie
    apart, as a share of their median.
    """

    name: str
    unit: str
    gpudiag: tuple[float, ...]
    loop: tuple[float, ...]
    ratio: float | None = None
    loop_spread: float | None = None
    best: tuple[float, ...] = ()
    meanwhile: str = ""


@dataclass(frozen=True, slots=True)
class CallCost:
    """What one call into NVML costs here: how often each kind of look makes it, and its times."""

    call: str
    of_list: float
    of_fast_tick: float
    of_slow_tick: float
    median_seconds: float
    longest_seconds: float
    processor_seconds: float  # median


@dataclass(frozen=True, slots=True)
class StartTime:
    """How long a command takes from start to end: the median of so many rounds, or why it did not run."""

    command: str
    median_seconds: float | None
    processor_seconds: float | None
    rounds: int
    not_run: str | None = None


@dataclass(frozen=True, slots=True)
class HangSeen:
    """What `gpudiag hang` reported of one job of two NCCL ranks on one GPU.

    `right` is None where the job did not come so far.
    """

    kind: str
    right: bool | None
    answer: str
    seconds: float
    steps: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CheckSeen:
    """One check on real readings: its outcome, and which of the readings that it judges were really there.

    `missing` are those that no GPU gave, each with the reason; `confirmed_before` is what had shown them
    until now.
    """

    check: str
    title: str
    outcome: Outcome
    reason: str | None
    codes: tuple[str, ...]
    read: tuple[str, ...]
    missing: dict[str, str]
    confirmed_before: str


@dataclass(frozen=True, slots=True)
class ReadingSeen:
    """One reading of a GPU held against what nvidia-smi showed in the same run.

    `outcome` is same, differs, only_here, only_in_capture or not_in_capture; live readings move between two
    looks.
    """

    nvml_index: int
    reading: str
    kind: str  # fixed, setting, live or identity
    outcome: str
    ours: str
    theirs: str


@dataclass(frozen=True, slots=True)
class GpuSeen:
    """One GPU of the machine."""

    nvml_index: int | None
    name: str | None
    uuid: str | None
    bus_id: str | None


@dataclass(frozen=True, slots=True)
class Confirmation:
    """`gpudiag.confirmation/2`: what a run of `make gpu` confirmed on these GPUs, and what it did not."""

    SCHEMA: ClassVar[str] = "gpudiag.confirmation/2"

    outcome: Outcome
    host: str
    started_at: datetime
    seconds: float
    finished: bool  # False in a report that was written on the way
    simulated: str | None  # the scenario's name: then nothing here confirms hardware
    gpudiag_version: str
    python: str
    python_version: str
    torch_version: str | None
    cuda_runtime_version: str | None
    nccl_version: str | None
    driver_version: str | None
    gpus: tuple[GpuSeen, ...]
    not_here: tuple[str, ...]  # what this machine or its Python lacks, and what that costs
    steps: tuple[StepSeen, ...]
    speeds: tuple[Speed, ...]
    checks: tuple[CheckSeen, ...]
    readings: tuple[ReadingSeen, ...]
    costs: tuple[CallCost, ...]
    starts: tuple[StartTime, ...]
    hangs: tuple[HangSeen, ...]

    @property
    def day(self) -> str:
        """The day of the run, as a table has it."""
        return f"{self.started_at:%Y-%m-%d}"

    @property
    def gpu_names(self) -> Counter[str]:
        """How many GPUs of each name there are."""
        return Counter(gpu.name or "a GPU without a name" for gpu in self.gpus)


# --- what may leave the machine


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """How one step ended."""

    name: str
    outcome: Outcome
    seconds: float


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """One check on real readings: its outcome, its findings' codes, and which of its readings a GPU gave."""

    check: str
    outcome: Outcome
    codes: tuple[str, ...]
    read: tuple[str, ...]
    missing: dict[str, str]


@dataclass(frozen=True, slots=True)
class ReadingOutcome:
    """How one reading of one GPU compares with nvidia-smi's; the values are in the machine."""

    nvml_index: int
    reading: str
    kind: str
    outcome: str


@dataclass(frozen=True, slots=True)
class HangOutcome:
    """Whether `gpudiag hang` was right about one job."""

    kind: str
    right: bool | None
    seconds: float


@dataclass(frozen=True, slots=True)
class AnonymousConfirmation:
    """`gpudiag.anonymous_confirmation/1`: what `make gpu` confirmed, without what names machine or users.

    `digest` is the SHA-256 of the document as gpudiag writes it, with this digest as zeros: it shows an
    accidental change.
    """

    SCHEMA: ClassVar[str] = "gpudiag.anonymous_confirmation/1"

    digest: str
    outcome: Outcome
    day: str
    seconds: float
    finished: bool
    simulated: bool
    gpudiag_version: str
    python_version: str
    torch_version: str | None
    cuda_runtime_version: str | None
    nccl_version: str | None
    driver_version: str | None
    machine: Snapshot
    steps: tuple[StepOutcome, ...]
    speeds: tuple[Speed, ...]
    checks: tuple[CheckOutcome, ...]
    readings: tuple[ReadingOutcome, ...]
    costs: tuple[CallCost, ...]
    starts: tuple[StartTime, ...]
    hangs: tuple[HangOutcome, ...]

    @property
    def gpu_names(self) -> Counter[str]:
        """How many GPUs of each name there are."""
        return Counter(
            "a GPU without a name" if isinstance(device.name, Missing) else device.name
            for device in self.machine.devices
        )
