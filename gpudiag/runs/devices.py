"""The recipe behind `gpudiag list`: ask the wanted sources once; ask GPUtil too if NVML has no answer.

torch takes seconds to load, so it is asked only where it is named.
"""

from dataclasses import replace

from gpudiag.model.codec import noun
from gpudiag.model.device import Snapshot, SourceState
from gpudiag.probe.inventory import take_snapshot
from gpudiag.probe.start import LOOK_SECONDS, StartedProbes, start_probes

SOURCES = ("nvml", "gputil", "torch")
DEADLINE_SECONDS = LOOK_SECONDS

_TORCH_UNASKED = "it takes seconds to load; --sources all asks it"
_LEFT_ALONE = "not asked: the driver hangs, and asking would wait for it again; --sources all asks anyway"


@noun
class DeviceRequest:
    """The sources to ask by name (None: NVML, and GPUtil if that has no answer), and the deadline.

    Judging GPUs needs the kernel log (Xids), judging the machine the host's state too (`checks.on_machine`).
    """

    sources: tuple[str, ...] | None = None
    deadline_seconds: float = DEADLINE_SECONDS
    kernel_log: bool = False
    host_state: bool = False
    patient: bool = True  # a driver that has to attach GPUs first has more time than the deadline


def read_devices(request: DeviceRequest, started: StartedProbes | None = None) -> Snapshot:
    """One snapshot of this machine, in which GPUs that are asleep stay so.

    `started` are probes that are already running. It returns within a second of the deadline, or of GPUtil's
    and torch's own if they are asked.
    """
    if request.sources is not None:
        return take_snapshot(
            request.sources,
            request.deadline_seconds,
            kernel_log=request.kernel_log,
            host_state=request.host_state,
            started=started,
            patient=request.patient,
            wake=False,
        )
    started = started or start_probes(wake=False)
    snapshot = take_snapshot(
        ("nvml",),
        request.deadline_seconds,
        kernel_log=request.kernel_log,
        host_state=request.host_state,
        started=started,
        patient=request.patient,
    )
    state = snapshot.source("nvml").state
    if state is SourceState.OK:
        return snapshot
    if state is SourceState.TIMED_OUT:
        return _explained(snapshot, _LEFT_ALONE)
    # NVML has answered: the same answer is joined with that of the other.
    snapshot = take_snapshot(
        ("nvml", "gputil"),
        request.deadline_seconds,
        kernel_log=request.kernel_log,
        host_state=request.host_state,
        started=started,
    )
    return _explained(snapshot, _TORCH_UNASKED)


def _explained(snapshot: Snapshot, reason: str) -> Snapshot:
    """The snapshot, with the reason why some sources were not asked."""
    sources = tuple(
        replace(status, reason=reason) if status.state is SourceState.NOT_ASKED else status
        for status in snapshot.sources
    )
    return replace(snapshot, sources=sources)
