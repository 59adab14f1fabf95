"""The recipe behind `gpudiag list`: ask the wanted sources once; ask the others where NVML has no answer."""

from gpudiag.model.device import Snapshot, SourceState
from gpudiag.model.noun import noun
from gpudiag.probe.inventory import take_snapshot
from gpudiag.probe.start import StartedProbes, start_probes

SOURCES = ("nvml", "gputil", "torch")
DEADLINE_SECONDS = 5.0

# NVML's own hang would only be waited for once more.
_FINAL_STATES = (SourceState.OK, SourceState.TIMED_OUT)


@noun
class DeviceRequest:
    """What to ask: the sources by name (None: NVML, and the others if it has no answer), and how long.

    Whoever judges the GPUs wants the kernel log too: a GPU with an Xid may show nothing in NVML.
    """

    sources: tuple[str, ...] | None = None
    deadline_seconds: float = DEADLINE_SECONDS
    kernel_log: bool = False


def take_devices(request: DeviceRequest, started: StartedProbes | None = None) -> Snapshot:
    """One snapshot of this machine; `started` are probes that are under way already.

    It comes within a second of the deadline; where GPUtil and torch are asked, of theirs.
    """
    if request.sources is not None:
        return take_snapshot(
            request.sources, request.deadline_seconds, kernel_log=request.kernel_log, started=started
        )
    started = started or start_probes()
    snapshot = take_snapshot(
        ("nvml",), request.deadline_seconds, kernel_log=request.kernel_log, started=started
    )
    if snapshot.source("nvml").state in _FINAL_STATES:
        return snapshot
    # NVML has answered: the same answer is joined with those of the others.
    return take_snapshot(SOURCES, request.deadline_seconds, kernel_log=request.kernel_log, started=started)
