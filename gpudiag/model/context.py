"""Context: all that a check may see."""

from collections.abc import Mapping
from dataclasses import field

from gpudiag.model.codec import noun
from gpudiag.model.device import Snapshot
from gpudiag.model.history import History, KnownGpus, Sample
from gpudiag.model.kernel_log import KernelEvent
from gpudiag.model.plan import FreeMemory
from gpudiag.model.reading import NOT_ASKED, Reading
from gpudiag.model.report import Measures


@noun
class Context:
    """What was gathered, and what is expected: the only input of a check.

    `earlier` is an earlier snapshot of the same machine, seconds old (taken by the same run) or from the
    stored history: counters are judged by how they moved since. `baseline` is this machine in its last
    good run, and `known_gpus` the GPUs that it had then. `expected_machine` is the good machine that the user
    named (`--expect`), which may be another of the same kind. `samples` are this run's measurements
    as the history keeps them; `history` is what it keeps of earlier runs. `xid_events` are the Xids that
    NVML's events reported to a service; a kernel log that cannot be read, or has lost the line, does not have
    them. `environment` are the variables under which ranks were started, where a speed is judged by them.
    """

    snapshot: Snapshot
    measures: Measures = field(default_factory=Measures)
    expected_gpus: Reading[int] = NOT_ASKED  # given by --expect-gpus
    at_least_gpus: Reading[int] = NOT_ASKED  # by --at-least-gpus
    expected_driver: Reading[str] = NOT_ASKED  # by --expect-driver
    least_free_memory: Reading[FreeMemory] = NOT_ASKED  # by --min-free-memory
    earlier: Reading[Snapshot] = NOT_ASKED
    baseline: Reading[Snapshot] = NOT_ASKED
    known_gpus: Reading[KnownGpus] = NOT_ASKED
    expected_machine: Reading[Snapshot] = NOT_ASKED
    history: Reading[History] = NOT_ASKED
    samples: tuple[Sample, ...] = ()
    xid_events: tuple[KernelEvent, ...] = ()  # oldest first, without a text
    environment: Mapping[str, str] = field(default_factory=dict)
