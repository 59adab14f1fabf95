"""What is remembered of a machine: its runs, its GPUs, and what it measured when it was good."""

from datetime import datetime
from typing import ClassVar

from gpudiag.model.codec import noun
from gpudiag.model.device import Snapshot
from gpudiag.model.kernel_log import KernelEvent
from gpudiag.model.reading import NOT_ASKED, Reading


@noun
class Sample:
    """One number that a run measured, in the metric's unit: `memory_copy` of one GPU, in B/s.

    `device_uuid` is None for what belongs to the machine as a whole. Metrics name the method too
    (`all_reduce.float32.8388608.gloo.4.busbw`): only like is compared with like. `judged` False: it is
    remembered, and too noisy to be judged (speeds of a CPU that others use too).
    """

    metric: str
    value: float
    unit: str
    device_uuid: str | None = None
    judged: bool = True


@noun
class Baseline:
    """What one metric of one GPU was in the last good runs: the median over `count` of them."""

    metric: str
    unit: str
    device_uuid: str | None
    median: float
    count: int
    latest: float  # the newest value of any run, good or not
    latest_at: datetime


@noun
class KnownGpu:
    """A GPU that this machine had, when it was last seen working, and the NVML index that it had then."""

    uuid: str
    bus_id: str
    name: str
    last_seen: datetime
    serial: str = ""
    nvml_index: int | None = None


@noun
class KnownGpus:
    """The GPUs that this machine had in its last good run, and which share of the machine was looked at.

    `share` is how many GPUs an allocation gave, None where no allocation was found.
    """

    host: str
    gpus: tuple[KnownGpu, ...]
    share: int | None
    in_container: bool


@noun
class StoredRun:
    """One run in the store."""

    id: int
    kind: str  # preflight, nccl-test, bandwidth or run
    at: datetime
    outcome: str
    simulated: str | None = None


@noun
class History:
    """`gpudiag.history/1`: what the store holds about one machine; runs newest first.

    `last` is the newest stored snapshot and `good` the newest of a run that passed; only a judgement
    asks for them. `kernel_events` are those of earlier runs, oldest first.
    """

    SCHEMA: ClassVar[str] = "gpudiag.history/1"

    machine: str
    store: str  # where it is kept, without a password
    runs: tuple[StoredRun, ...] = ()
    gpus: tuple[KnownGpu, ...] = ()
    baselines: tuple[Baseline, ...] = ()
    last: Reading[Snapshot] = NOT_ASKED
    good: Reading[Snapshot] = NOT_ASKED
    kernel_events: tuple[KernelEvent, ...] = ()
